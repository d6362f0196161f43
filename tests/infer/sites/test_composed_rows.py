"""Rows with linear predictors in what they share: against the model's own Hessians, point by point and on average."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers.structureless import forget_structure

import pyro_fed as pf
from pyro_fed.density.compiling.composed import composed_structure
from pyro_fed.density.compiling.predictors import CHECK_ROWS
from pyro_fed.density.derivatives import composed_rows, derivatives, scores
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.infer.sites.gaussian_sites import spread_points
from pyro_fed.ops.gaussian import FullGaussian

FEATURES = 3


def ridge(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ (tau * z), s), obs=y)


def horseshoe(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0).expand([x.shape[1]]).to_event(1))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ (tau * scale * z)), obs=(y > 0).double())


def bounded(x, y):
    """A scale is in the rows as it is and as its logarithm."""
    w = pyro.sample("w", dist.LogNormal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(4.0, x @ w - 1.0, s), obs=y)


MODELS = [ridge, horseshoe, bounded]


def curved(x, y):
    """Of as many numbers a row as there are parameters."""
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([3, x.shape[1]]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(torch.sin(x[:, None] * z).sum((1, 2)), 1.0), obs=y)


def federation(model, rows=90):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, FEATURES, generator=g, dtype=torch.float64)
    y = x @ torch.tensor([0.9, 0.5, 0.3], dtype=torch.float64) + torch.randn(rows, generator=g, dtype=torch.float64)
    return pf.Federation(model, (x, y), plate="data", num_clients=3)


def near(dim, sd):
    """A Gaussian of three clients around a point, correlated."""
    g = torch.Generator().manual_seed(1)
    root = sd * (torch.randn(dim, dim, generator=g, dtype=torch.float64).tril() / dim + torch.eye(dim).double())
    centre = torch.linspace(-0.3, 0.3, dim, dtype=torch.float64)
    return FullGaussian.from_moments(centre.expand(3, -1), (root @ root.T).expand(3, -1, -1))


def test_what_is_not_linear_in_what_rows_share_has_no_structure():
    assert composed_structure(federation(curved).problem, CHECK_ROWS) is None
    assert composed_structure(federation(horseshoe).problem, CHECK_ROWS).dim == FEATURES


@pytest.mark.parametrize("model", MODELS)
def test_means_over_points_are_those_of_the_models_hessians(model, monkeypatch):
    fed = federation(model)
    problem, batch = fed.problem, fed.client_data().full_batch()
    points = spread_points(near(problem.dim, 0.2), 16)
    found = composed_rows.means_at(problem, points, batch)
    forget_structure(monkeypatch)
    exact = Derivatives("full", "hessian").of_likelihood(problem, points, batch)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 1)  # point by point
    for a, b in zip(composed_rows.means_at(problem, points, batch), exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_looks_at_points_are_the_models(model, monkeypatch):
    fed = federation(model)
    problem, data = fed.problem, fed.client_data()
    points = spread_points(near(problem.dim, 0.2), 16).transpose(0, 1).contiguous()
    found = scores.look_at_likelihood(problem, points, data)
    forget_structure(monkeypatch)
    torch.testing.assert_close(found, scores.look_at_likelihood(problem, points, data))


@pytest.mark.parametrize("model", MODELS)
def test_many_rows_are_a_parabola_in_what_they_share(model):
    """Where q is as wide as the posterior of so many rows; and where it is ten times as wide they are none."""
    fed = federation(model, 30_000)
    problem, batch = fed.problem, fed.client_data().full_batch()
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    points = spread_points(near(problem.dim, 0.005), 128)
    exact = composed_rows.means_at(problem, points, batch)
    found, straight = composed_rows.means_of_parabola(problem, points, batch, share)
    assert bool(straight.all())
    root = near(problem.dim, 0.005).root()
    pull = root.mT @ (found.score - exact.score).unsqueeze(-1)
    bend = root.mT @ (found.curvature - exact.curvature) @ root
    size = (root.mT @ exact.curvature @ root).abs().amax()
    assert float(pull.abs().max()) < 0.02 * float(size.sqrt())
    assert float(bend.abs().max()) < 0.02 * float(size)
    assert not bool(
        composed_rows.means_of_parabola(problem, spread_points(near(problem.dim, 0.3), 128), batch, share)[1].any()
    )


@pytest.mark.parametrize("model", [ridge, horseshoe])
def test_curvatures_by_shares_are_those_of_all_points(model, monkeypatch):
    """Each row at its share of the points; without the structure the same numbers from the model's own Hessians."""
    fed = federation(model)
    problem, batch = fed.problem, fed.client_data().full_batch()
    points, work = spread_points(near(problem.dim, 0.05), 64), Derivatives("full", "hessian")
    found = work._shared_curvature(problem, points, batch, 4)
    monkeypatch.setattr(derivatives, "shares", lambda problem: False)
    torch.testing.assert_close(found, work._shared_curvature(problem, points, batch, 4), rtol=1e-9, atol=1e-9)
