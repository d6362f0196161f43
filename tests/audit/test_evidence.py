"""What the audit looks at: how many draws it takes of a distribution, and those of the prior that are numbers."""

from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.evidence import FEWEST_DRAWS, FROM_PRIOR, MANY_DRAWS, MANY_NUMBERS, Evidence


@pytest.mark.parametrize(("dim", "expected"), [(2, MANY_DRAWS), (1_000, MANY_NUMBERS // 1_000), (50_000, FEWEST_DRAWS)])
def test_the_audits_own_draws_are_bounded_in_numbers(dim, expected):
    algorithm = SimpleNamespace(
        draws_are="independent",
        sample=lambda shared, num_draws, generator: torch.zeros(1, 1).expand(num_draws, dim)[None],
    )
    evidence = Evidence(
        algorithm=algorithm,
        federation=None,
        problem=SimpleNamespace(dim=dim),
        shared={"eta": torch.zeros(1)},
        draws=torch.zeros(1, 10, dim),
        record=None,
        seed=0,
    )
    assert evidence.flat.shape == (expected, dim)


def wide(y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 500.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


def vast(y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1e6))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


@pytest.mark.parametrize(("model", "some"), [(wide, True), (vast, False)])
def test_draws_of_the_prior_that_are_no_numbers_are_left_out(model, some):
    """exp(500 x) is beyond the range of float64 for |x| above 1.4, a sixth of the draws, where no posterior is."""
    y = torch.linspace(-1, 1, 20, dtype=torch.float64)
    result = pf.run(
        pf.FedEP(), pf.Federation(model, (y,), plate="data", num_clients=2), progress=False, log_likelihood=False
    )
    assert result.attrs["doubts"] == ""
    problem = pf.Federation(model, (y,), plate="data", num_clients=2).problem
    evidence = Evidence(None, None, problem, {}, torch.zeros(1, 10, 1), None, 0)
    prior = evidence.from_prior
    assert (prior is not None) == some
    if some:
        assert len(prior) < FROM_PRIOR and bool(prior.isfinite().all())
