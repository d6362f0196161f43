"""A chain on sums of scores: exact as Euler's chain is, private by the noise that it needs anyway."""

import functools
import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_results import groups_of
from short_runs import quiet
from torch.func import grad

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.gradients import row_scores

CLIENTS, ROWS, DIM = 40, 25, 3


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(DIM, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@functools.cache
def federation():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y = y + torch.randn(len(x), generator=generator, dtype=torch.float64)
    return pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS)


def exact(temperature=1.0):
    """Means and SDs of the generalised posterior."""
    x, y = federation().problem.arguments.leaves
    covariance = torch.linalg.inv(torch.eye(DIM).double() + x.T @ x / temperature)
    return (covariance @ x.T @ y / temperature).numpy(), covariance.diagonal().sqrt().numpy()


def found(idata):
    draws = idata.posterior["w"].values.reshape(-1, DIM)
    return draws.mean(0), draws.std(0)


STEP = 4e-4  # h λ = 0.4: variances 11 % too wide, and draws that are 5 rounds apart half forgotten
LONG = {"num_rounds": 500, "compile": "trace", "log_likelihood": False}


@pytest.mark.parametrize(
    ("step", "said"), [(None, "give a step_size below 4e+12, the longest that the noise of pf.Pr"), (2e12, "reduce")]
)
def test_a_step_that_is_too_long_is_told_by_what_it_follows_from(step, said):
    def scale(y):
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0, s), obs=y)

    fed = pf.Federation(scale, (torch.ones(4).double(),), plate="data", num_clients=2)
    private = pf.Private(norm=1.0, noise_multiplier=1e-6)
    with pytest.raises(pf.errors.DivergenceError, match=re.escape(said)):
        quiet(pf.infer.SummedLangevin(step_size=step), fed, combination=private, num_rounds=60, compile="off")


def test_the_chain_is_that_of_the_posterior():
    """2 × 400 draws, of which 80 count: 0.11 SD of error a mean, 8 % an SD; five of these."""
    algorithm = pf.infer.SummedLangevin(step_size=STEP * 4, temperature=4.0, num_chains=2, target_ess=None)
    mean, sd = found(quiet(algorithm, federation(), **LONG))
    centre, width = exact(4.0)
    np.testing.assert_allclose((mean - centre) / width, 0, atol=0.55)
    np.testing.assert_allclose(sd / width, 1.054, atol=0.4)


@pytest.mark.parametrize(
    ("algorithm", "private"),
    [
        ({}, {"norm": 25.0, "noise_multiplier": (4 / STEP) ** 0.5 / 25}),  # all noise is the release's
        ({"row_norm": 6.0, "step_size": STEP}, {"norm": 6.0, "noise_multiplier": 8.0, "unit": "row"}),  # a part of it
    ],
    ids=["clients", "rows"],
)
def test_a_private_chain_has_the_posterior_s_spread(algorithm, private):
    """400 draws of one chain, of which 40 count: 0.16 SD a mean, 11 % an SD; five of these, beside clipping."""
    chain = pf.infer.SummedLangevin(**algorithm)
    idata = quiet(chain, federation(), combination=pf.Private(**private), **LONG)
    (mean, sd), (centre, width) = found(idata), exact()
    np.testing.assert_allclose((mean - centre) / width, 0, atol=0.9)
    assert (sd / width > 0.5).all()
    assert (sd / width < 1.7).all()
    assert idata.attrs["epsilon"] == pytest.approx(pf.Private(**private).epsilon(500))
    assert groups_of(idata) == {"federation", "posterior"}


def test_steps_that_are_too_long_are_told():
    """hλ of 2: draws have no autocorrelation, and SDs √2 times the width; 100 draws, 10 % off."""
    idata = quiet(
        pf.infer.SummedLangevin(step_size=5 * STEP, burn_in=10, target_ess=None), federation(), num_rounds=110
    )
    assert re.search(r"too long for this posterior: the draws' SDs are 1\.[3-9]\d* times", idata.attrs["doubts"])


@pytest.mark.parametrize(
    ("algorithm", "private", "words"),
    [
        (pf.infer.SummedLangevin(step_size=1.0), {}, r"at most 0\.0494, or temperature=4\.5"),
        (pf.infer.SummedLangevin(row_norm=2.0), {"unit": "row"}, "needs row_norm=3 here"),
        (pf.infer.SummedLangevin(released_noise=1.0), None, "set by the run"),
        (pf.infer.SummedLangevin(), None, "give step_size"),
        (pf.FedEP(start="prior"), {"unit": "row"}, "FedEP: Private.unit='row'. protects single rows"),
        (pf.infer.SummedLangevin(row_norm=3.0), {"unit": "row", "delta": 1e-3}, "means nothing for 1000 rows"),
        (pf.FSGLD(), {}, "FSGLD has no differential privacy: a visit moves a chain"),
        (pf.DSVGD(), {}, "DSVGD has no differential privacy: clients take turns"),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm, private, words):
    combination = None if private is None else pf.Private(norm=3.0, noise_multiplier=3.0, **private)
    with pytest.raises(SettingError, match=words):
        quiet(algorithm, federation(), num_rounds=3, combination=combination)


@pytest.mark.parametrize("rows", [2, 7])
def test_scores_of_rows_are_those_of_one_row_each(rows):
    problem = federation().problem
    some = tuple(leaf[:rows] for leaf in problem.rows)
    z = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    one = torch.stack(
        [
            grad(lambda z, i=i: problem.log_parts(z, tuple(leaf[i : i + 1] for leaf in some))[1].sum())(z)
            for i in range(rows)
        ]
    )
    torch.testing.assert_close(row_scores(problem, z, some), one)


def test_a_sum_without_some_clients_is_scaled_and_its_step_shortened():
    algorithm = pf.infer.SummedLangevin(released_noise=10.0)
    position = torch.zeros(1, 2, dtype=torch.float64)
    shared, _ = algorithm.init(federation().problem, 4, torch.Generator().manual_seed(0), None)
    shared |= {"position": position, "prior_score": position}
    message = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    for there, step in ((4, 4 / 100), (2, 1 / 100)):
        after = algorithm.combine(shared, {"score": message.expand(there, 1, 2)}, torch.full((there,), 1 / there))
        torch.testing.assert_close(after["position"], step / 2 * 4 * message)
