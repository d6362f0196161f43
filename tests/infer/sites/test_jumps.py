"""Rows whose scores jump: which models have them, and sites of their scores against posteriors by quadrature."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.sites.rowwise import jumps


def weight(x):
    return pyro.sample("w", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))


def median(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w, 1.0), obs=y)


def quantile(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        away = y - x @ w
        pyro.factor("check", -torch.maximum(0.7 * away, -0.3 * away))


def median_of_a_sum(x, y):
    w, v = weight(x), pyro.sample("v", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w + v, 1.0), obs=y)


def robust(x, y):
    w, s = weight(x), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(2.0, x @ w, s), obs=y)


def grades(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        cuts = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)
        pyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y.round().clamp(0, 3))


def coins(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=(y > 0).to(x))


def counts(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y.abs().round())


def two(x, y):
    w, v = weight(x), pyro.sample("v", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        parts = dist.Normal(torch.stack([x @ w, x @ v], -1), 0.5)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.3, 0.7]).to(x)), parts), obs=y)


def rows(count, features, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=g, dtype=torch.float64)
    y = x.sum(1) + torch.randn(count, generator=g, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def federation(model, count=200, features=1, dtype=torch.float64, clients=3):
    return pf.Federation(model, rows(count, features, dtype), plate="data", num_clients=clients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [median, quantile, median_of_a_sum])
def test_jumps_are_found(model, dtype):
    assert jumps(federation(model, 60, 3, dtype).problem)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [robust, grades, coins, counts, two])
def test_smooth_rows_have_none(model, dtype):
    assert not jumps(federation(model, 60, 3, dtype).problem)


def test_jumps_far_from_zero_and_of_other_sizes_are_found():
    x, y = rows(60, 3)
    for scale in (1e-2, 1e3):
        assert jumps(pf.Federation(median, (x, scale * y), plate="data", num_clients=3).problem)


@pytest.mark.parametrize("model", [median, quantile])
@pytest.mark.parametrize("count", [200, 4000])
def test_posteriors_are_those_of_quadrature(model, count):
    """One weight, on a grid; the curvature of the rows is zero at almost every point of it."""
    fed = federation(model, count)
    idata = pf.run(pf.FedEP(), fed, progress=False, audit=False, log_likelihood=False)
    draws = torch.tensor(idata.posterior["w"].values).flatten()
    x, y = rows(count, 1)
    grid = torch.linspace(0.5, 1.5, 4001, dtype=torch.float64)
    away = y - grid.unsqueeze(1) * x[:, 0]
    loss = away.abs() if model is median else torch.maximum(0.7 * away, -0.3 * away)
    mass = torch.softmax(-loss.sum(1) - grid.square() / 18, 0)
    mean = mass @ grid
    sd = (mass @ (grid - mean).square()).sqrt()
    assert float((draws.mean() - mean).abs() / sd) < 0.05
    assert float(draws.std() / sd) == pytest.approx(1.0, abs=0.05)
