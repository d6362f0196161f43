"""What importance ratios say of a Gaussian answer to any model, against posteriors whose moments are known."""

import math
import re
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit import tails


def conjugate(y):
    """The posterior of a is N(mean y / 2, 1/2) with one row."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


@pytest.mark.parametrize(
    ("shift", "narrower", "said"),
    [
        (0.0, 1.0, None),
        (0.1, 1.0, None),
        (0.0, 0.9, None),
        (0.7, 1.0, r"the mean of 'a' 0\.[67]\d* SDs away"),
        (0.0, 1.6, "the SD of 'a' 0.6[23] times this approximation's"),
        (0.0, 0.2, "tails that this approximation lacks: Pareto k .* most of all in 'a'"),
    ],
)
def test_an_answer_is_told_how_it_is_wrong(shift, narrower, said):
    """At the quantiles of q, so that nothing is random; k tends to 1 - 0.2² there."""
    problem = pf.Federation(conjugate, (torch.ones(1, dtype=torch.float64),), plate="data", num_clients=1).problem
    sd = math.sqrt(0.5)
    q = dist.Normal(torch.tensor(0.5 + shift * sd, dtype=torch.float64), narrower * sd)
    draws = q.icdf((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    found = tails.tail_warnings(problem, draws[:, None], q.log_prob(draws))
    assert len(found) == (said is not None)
    assert all(re.search(said, note) for note in found)


def many_means(group, y):
    """Neyman & Scott (1948): with r rows a group the mode of log s is log(r / (r - 1)) / 2 too low."""
    s = pyro.sample("s", dist.LogNormal(0.0, 3.0))
    m = pyro.sample("m", dist.Normal(0.0, 100.0).expand([10]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m[group], s), obs=y)


def test_a_mode_that_is_off_is_said_by_the_run_and_the_expected_newton_step_is_not():
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(10).repeat_interleave(8)
    y = group + torch.randn(80, generator=generator, dtype=torch.float64)
    fed = pf.Federation(many_means, (group, y), plate="data", num_clients=3)
    with pytest.warns(UserWarning, match="importance sampling finds the mean of 's'"):
        found = pf.run(pf.FedLaplace(), fed, progress=False, compile="off")
    assert "the mean of 's'" in pf.compare({"mode": found})["warnings"]["mode"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.run(pf.FedEP(), fed, progress=False, compile="off")
