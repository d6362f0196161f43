"""A lasso's prior, whose score jumps where second derivatives are zero, against closed forms."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.compiling import jumps
from pyro_fed.density.derivatives.other_curvatures import with_kinks
from pyro_fed.density.traits_search import ModelTraits
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.memory import count_in_memory

QUIET = {"progress": False, "log_likelihood": False, "audit": False}
WIDTH = 0.7
HERE = {"FedEP": {}, "PVI": {}, "P2PVI": {"graph": pf.graph.ring(3)}}


def lasso(x, y):
    s = pyro.sample("s", dist.HalfNormal(1.0))
    w = pyro.sample("w", dist.Laplace(x.new_zeros(x.shape[1]), WIDTH).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
    pyro.factor("s_known", -50 * s.log().square())


def ridge(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), WIDTH).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def fused(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 3.0).to_event(1))
    pyro.factor("steps", -(w[1:] - w[:-1]).abs().sum())
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def scaled(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    w = pyro.sample("w", dist.Laplace(x.new_zeros(x.shape[1]), tau).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def orthogonal():
    """Rows that say of each weight its least squares and how well it is known: of the last nothing."""
    x = torch.zeros(12, 4, dtype=torch.float64)
    x[:4, 0], x[4:8, 1], x[8:, 2] = 1.0, 0.3, 0.1
    return x, torch.linspace(-0.4, 2.0, 12, dtype=torch.float64)


def nearest(precision, least_squares):
    """Mean and SD of the Gaussian of smallest KL to exp(-|w| / b) N(least squares, 1 / precision), by its equations.

    m: precision (ls - m) = erf(m / √2 s) / b;   1 / s² = precision + 2 φ(m / s) / (b s).
    """
    m, s = 0.0, WIDTH
    for _ in range(2000):
        bend = 2 * math.exp(-(m**2) / s**2 / 2) / math.sqrt(2 * math.pi) / (WIDTH * s)
        slope = precision * (least_squares - m) - math.erf(m / s / math.sqrt(2)) / WIDTH
        m, s = m + 0.5 * slope / (precision + bend), 0.5 * s + 0.5 * (precision + bend) ** -0.5
    return m, s


@pytest.mark.parametrize("name", HERE)
def test_the_gaussian_nearest_to_a_lassos_posterior_is_found(name):
    """Within what cells of the density leave. Two of its weights were wider by 1.9 and by 100 times."""
    x, y = orthogonal()
    fed = pf.Federation(lasso, (x, y), plate="data", num_clients=3)
    idata = pf.run(getattr(pf.infer, name)(), fed, seed=0, **QUIET, **HERE[name])
    assert idata.attrs["converged"]
    w = torch.as_tensor(idata["posterior"]["w"].values).reshape(-1, 4)
    for i in range(4):
        precision = float(x[:, i].square().sum())
        m, s = nearest(precision, float(x[:, i] @ y) / precision if precision else 0.0)
        assert float(w[:, i].mean()) == pytest.approx(m, abs=0.02 * s)
        assert float(w[:, i].std()) == pytest.approx(s, rel=0.015)


def test_a_prior_without_data_has_the_width_of_its_nearest_gaussian():
    assert nearest(0.0, 0.0)[1] == pytest.approx(WIDTH * math.sqrt(math.pi / 2))


def test_it_is_seen_which_sites_have_kinks():
    assert pf.Federation(lasso, orthogonal(), plate="data", num_clients=3).problem.traits.prior_kinks.tolist() == [
        *[False],
        *[True] * 4,
    ]
    assert pf.Federation(fused, orthogonal(), plate="data", num_clients=3).problem.traits.prior_kinks.all()
    assert not pf.Federation(ridge, orthogonal(), plate="data", num_clients=3).problem.traits.prior_kinks.any()


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in HERE), ("FedEP", torch.float64)])
def test_a_lasso_whose_scale_is_latent_begins_at_laplaces_place(name, dtype):
    """Under the Gaussian nearest to its prior likelihoods overflow: all were 10^7 SDs off from there in float32."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(60, 8, generator=generator).to(dtype)
    y = 2 * x[:, 0] - x[:, 1] + torch.randn(60, generator=generator).to(dtype)
    fed = pf.Federation(scaled, (x, y), plate="data", num_clients=3)
    assert not fed.problem.traits.kinked_prior
    idata = pf.run(getattr(pf.infer, name)(), fed, seed=0, **QUIET, **HERE[name])
    assert idata.attrs["converged"]
    w = torch.as_tensor(idata["posterior"]["w"].values).double().reshape(-1, 8)
    least_squares = torch.linalg.inv(x.double().T @ x.double())
    assert bool((w.std(0) < 1.05 * least_squares.diagonal().sqrt()).all())
    assert bool(((w.mean(0) - least_squares @ (x.double().T @ y.double())).abs() < w.std(0)).all())


@pytest.mark.parametrize("full", [True, False])
def test_scores_that_are_linear_are_followed_exactly(full, monkeypatch):
    problem = pf.Federation(ridge, orthogonal(), plate="data", num_clients=3).problem
    monkeypatch.setattr(ModelTraits, "prior_kinks", torch.ones(4, dtype=torch.bool))
    points = torch.randn(30, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = points @ torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    curvature = torch.eye(4, dtype=torch.float64).expand(2, 4, 4) / WIDTH**2
    exact = Moments(
        torch.zeros(2, dtype=torch.float64),
        -points.mean(0) / WIDTH**2 if full else torch.zeros(2, 4, dtype=torch.float64),  # of diagonals the points
        curvature if full else curvature.diagonal(dim1=1, dim2=2),
    )
    found = with_kinks(problem, points, Moments(*(torch.zeros_like(part) for part in exact)))
    torch.testing.assert_close(found, exact)


def test_laplaces_approximation_says_that_it_is_none():
    fed = pf.Federation(lasso, orthogonal(), plate="data", num_clients=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pf.run(pf.FedLaplace(), fed, num_rounds=5, **QUIET)
    assert "the prior's in a lasso" in idata.attrs["doubts"]


def rectified(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), WIDTH).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ w).relu(), 1.0), obs=y)


def test_lines_of_many_coordinates_are_followed_some_at_a_time(monkeypatch):
    """All at once took 0.7 GB of a network of 85 parameters, and four times as much of one twice as large."""
    x = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    problem = pf.Federation(rectified, (x, x[:, 0]), plate="data", num_clients=2, seed=0).problem
    followed, inner = [], jumps._largest_jumps
    monkeypatch.setattr(jumps, "_largest_jumps", lambda *given: followed.append(given[3]) or inner(*given))
    assert not jumps.scores_turn(problem)
    assert torch.equal(torch.cat(followed), torch.eye(40))
    assert max(lines.numel() for lines in followed) * jumps.CHECK_ROWS <= count_in_memory(jumps._numbers_along_line(1))
    assert len(followed) > 1


def test_a_likelihood_whose_scores_turn_is_no_reason_to_look_at_a_prior_whose_scores_cannot(monkeypatch):
    """The lines that are followed run the whole model: 21 s of a network of 75,010 parameters with ReLUs."""
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    followed = []
    monkeypatch.setattr(jumps, "_largest_jumps", lambda *given: followed.append(given))
    problem = pf.Federation(rectified, (x, x[:, 0]), plate="data", num_clients=2, seed=0).problem
    assert not jumps.prior_turns(problem).any()
    assert not followed
