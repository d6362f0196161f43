"""Rows whose latents have several modes given the rest: integrals, draws and what is said, against grids."""

from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hierarchies import CASES as HIERARCHIES
from scipy import special, stats
from torch.func import grad, hessian

import pyro_fed as pf
from pyro_fed.density.latents.draws import draw_locals
from pyro_fed.density.latents.modes import MAX_STARTS, LatentAscent, needed_starts
from pyro_fed.errors import SettingError
from pyro_fed.runtime.integral_checks import integral_findings

GRID = np.linspace(-30, 30, 120_001)
STEP = GRID[1] - GRID[0]
COUNT = 1000


def square(y):
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("group", len(y)):
        x = pyro.sample("x", dist.Normal(0.5, tau))
        pyro.sample("y", dist.Normal(x**2, 0.05), obs=y)


def square_density(tau, y):
    return stats.norm.logpdf(GRID, 0.5, tau) + stats.norm.logpdf(y, GRID**2, 0.05)


def mixture(y):
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    parts = dist.Normal(torch.tensor([-1.2, 1.2]).to(tau), torch.tensor([0.05, 0.3]).to(tau))
    with pyro.plate("group", len(y)):
        x = pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.05, 0.95]).to(tau)), parts))
        pyro.sample("y", dist.Normal(x, tau + 1.0), obs=y)


def mixture_density(tau, y):
    narrow, wide = stats.norm.logpdf(GRID, -1.2, 0.05), stats.norm.logpdf(GRID, 1.2, 0.3)
    prior = np.logaddexp(np.log(0.05) + narrow, np.log(0.95) + wide)
    return prior + stats.norm.logpdf(y, GRID, tau + 1)


Y = {"square": [4.2, 2.5, 6.0, 3.1, 1.5, 5.0], "mixture": [0.3, -0.2, 1.0, 0.1, -1.0, 2.0]}
CASES = {"square": (square, square_density), "mixture": (mixture, mixture_density)}


def federation(name, **rule):
    y = torch.tensor(Y[name]).double()
    return pf.Federation(CASES[name][0], (y,), plate="group", num_clients=3, quadrature=pf.Quadrature(**rule))


def exact(name, tau):
    """Log marginal likelihoods of the rows, and their weights on the grid."""
    logs = np.stack([CASES[name][1](tau, y) for y in Y[name]])
    total = special.logsumexp(logs, 1)
    return total + np.log(STEP), np.exp(logs - total[:, None])


@pytest.mark.parametrize("tails", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_a_rows_log_likelihood_has_all_modes(name, tails):
    problem = federation(name, tails=tails).problem
    assert 1 <= len(problem.quadrature.starts) <= 2
    for tau in (0.3, 1.0, 4.0):
        found = problem.pointwise_log_lik(torch.tensor([tau]).double().log())
        np.testing.assert_allclose(found.numpy(), exact(name, tau)[0], rtol=0, atol=1e-3 if tails else 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_its_derivatives_are_those_of_the_integral(name):
    problem, step = federation(name).problem, 1e-3
    for z in (-1.0, 0.0, 1.0):
        low, here, high = (exact(name, np.exp(z + k * step))[0].sum() for k in (-1, 0, 1))
        at = torch.tensor([z]).double()
        assert float(grad(problem.log_lik)(at)) == pytest.approx((high - low) / (2 * step), rel=1e-3, abs=1e-3)
        curved = (high - 2 * here + low) / step**2
        assert float(hessian(problem.log_lik)(at)) == pytest.approx(curved, rel=3e-3, abs=1e-2)


@pytest.mark.parametrize("tails", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_draws_are_in_all_modes_by_their_mass(name, tails):
    """Shares are those of binomial numbers, or nearer, as modes are stratified over the draws."""
    problem, tau = federation(name, tails=tails).problem, 1.0
    theta = torch.zeros(COUNT, 1).double()
    draws = draw_locals(problem, theta, problem.rows, torch.Generator().manual_seed(0))[..., 0].numpy()
    weights = exact(name, tau)[1]
    share = (weights * (GRID > 0)).sum(1)
    error = np.abs((draws > 0).mean(0) - share)
    assert (error <= 5 * np.sqrt(share * (1 - share) / COUNT) + 1e-9).all()
    for row in range(len(share)):
        order = np.cumsum(weights[row])
        apart = np.abs(np.interp(np.sort(draws[:, row]), GRID, order) - (np.arange(COUNT) + 0.5) / COUNT).max()
        assert apart < 2.0 / np.sqrt(COUNT)  # Kolmogorov: once in 1,500


def test_ascents_end_where_all_have_arrived(monkeypatch):
    """Rows that are Gaussian given the rest arrive by a step or two, from however far; at most 25 were always taken."""
    problem, steps, step = HIERARCHIES["means"].federation(3).problem, [], LatentAscent.step
    monkeypatch.setattr(LatentAscent, "step", lambda *given: steps.append(1) or step(*given))
    theta = torch.zeros(2, problem.dim).double()
    assert needed_starts(problem, replace(problem.quadrature, starts=None), theta, problem.rows) == ()
    assert len(steps) <= problem.quadrature.mode_steps + 3


def test_one_mode_is_looked_for_where_there_is_one():
    """The latents are Gaussian given the rest: three nodes, no places."""

    def model(y):
        mu = pyro.sample("mu", dist.Normal(torch.zeros(()).to(y), 5.0))
        tau = pyro.sample("tau", dist.HalfNormal(2.0))
        with pyro.plate("group", len(y)):
            x = pyro.sample("x", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    problem = pf.Federation(model, (torch.arange(8.0).double(),), plate="group", num_clients=2).problem
    assert (problem.quadrature.starts, problem.quadrature.order) == ((), 3)


def test_modes_that_are_missed_are_told_with_places_that_find_them():
    theta = torch.linspace(-1, 1.4, 16).double().unsqueeze(-1)
    (note,) = integral_findings(federation("square", starts=()).problem, theta)
    assert note.code == "integrals_miss_modes"
    assert "miss modes: given the other latents, 6 of 6 rows" in note.text
    assert "more than 2.5% of their mass" in note.text
    setting = note.text.partition("quadrature=pf.")[2]
    rule = eval(setting, {"Quadrature": pf.Quadrature})
    assert integral_findings(federation("square", starts=rule.starts).problem, theta) == []
    assert integral_findings(federation("square").problem, theta) == []


def test_two_latents_a_row_have_modes_too():
    """(x, z) with y = x² and z about x: the signs are two modes, of 0.5 each by symmetry."""

    def model(y):
        tau = pyro.sample("tau", dist.HalfNormal(2.0))
        with pyro.plate("group", len(y)):
            x = pyro.sample("x", dist.Normal(0.0, tau))
            z = pyro.sample("z", dist.Normal(x, 0.5))
            pyro.sample("y", dist.Normal(x**2, 0.1), obs=y)
            pyro.sample("w", dist.Normal(z**2 - x**2, 1.0), obs=torch.zeros_like(y))

    y = torch.tensor([4.0, 2.5, 6.0]).double()
    problem = pf.Federation(model, (y,), plate="group", num_clients=3).problem
    assert problem.quadrature.starts
    grid = torch.linspace(-5, 5, 2001).double()
    z = grid[:, None]
    for tau in (0.7, 2.0):
        logs = [
            dist.Normal(0.0, tau).log_prob(grid)
            + dist.Normal(grid**2, 0.1).log_prob(v)
            + torch.logsumexp(
                dist.Normal(grid, 0.5).log_prob(z) + dist.Normal(z**2 - grid**2, 1.0).log_prob(torch.zeros(())), 0
            )
            for v in y
        ]
        expected = torch.stack([torch.logsumexp(one, 0) for one in logs]) + 2 * np.log(0.005)
        found = problem.pointwise_log_lik(torch.tensor([tau]).double().log())
        torch.testing.assert_close(found, expected, rtol=0, atol=3e-3)
    draws = draw_locals(problem, torch.zeros(400, 1).double(), problem.rows, torch.Generator().manual_seed(0))
    share = (draws[..., 0] > 0).double().mean(0)
    assert float((share - 0.5).abs().max()) < 5 * 0.5 / np.sqrt(400)
    assert bool((draws[..., 0].sign() == draws[..., 1].sign()).all(1).double().mean() > 0.5)


@pytest.mark.parametrize(
    "starts", [((1.0,), (1.0, 2.0)), ((float("nan"),),), (1.0, 2.0), tuple((float(i),) for i in range(MAX_STARTS + 1))]
)
def test_places_that_are_none_are_refused(starts):
    with pytest.raises(SettingError, match="starts must be at most 8 places"):
        pf.Quadrature(starts=starts)


def test_places_of_other_latents_are_refused():
    with pytest.raises(SettingError, match="starts are places of 2 numbers, and a row has 1 latents"):
        federation("square", starts=((1.0, 2.0),))


def test_the_posterior_has_both_signs_of_every_effect():
    fed = federation("square")
    taus = np.exp(np.linspace(-2, 2.5, 20))
    rows, weights = zip(*(exact("square", tau) for tau in taus), strict=True)
    log_post = np.array([one.sum() for one in rows]) + stats.halfnorm.logpdf(taus, scale=2) + np.log(taus)
    weight = np.exp(log_post - log_post.max()) / np.exp(log_post - log_post.max()).sum()
    mean = (weight * taus).sum()
    sd = np.sqrt((weight * (taus - mean) ** 2).sum())
    idata = pf.run(pf.FedAIS(num_proposals=2500), fed, seed=0, progress=False, log_likelihood=False)
    tau = idata["posterior"]["tau"].values
    assert abs(tau.mean() - mean) < 0.1 * sd
    assert abs(tau.std() / sd - 1) < 0.1
    assert idata.attrs["doubts"] == ""
    share = (weight[:, None] * np.stack([(one * (GRID > 0)).sum(1) for one in weights])).sum(0)
    assert np.abs((idata["posterior"]["x"].values > 0).mean((0, 1)) - share).max() < 0.06
