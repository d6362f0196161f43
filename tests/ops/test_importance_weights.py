"""Weights raised to a power, and log densities that are none."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.ops.importance import flattened

DOUBLE = torch.float64


@pytest.mark.parametrize("span", [1.0, 1e3, 1e9, 1e20])
@pytest.mark.parametrize("impossible", [0, 3, 90])
def test_what_is_impossible_stays_so_whatever_the_power(span, impossible):
    """Of a hundred weights at least five are worth something, or all that are possible alike."""
    log_weights = -span * torch.linspace(0.0, 1.0, 100, dtype=DOUBLE).square()
    log_weights[100 - impossible :] = -torch.inf
    weights = flattened(log_weights, 5)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(weights[100 - impossible :].sum()) == 0.0
    assert float(1 / weights.square().sum()) >= 5 * (1 - 1e-3)


def test_a_density_that_rounding_has_made_infinite_is_none():
    """Pyro's Kalman filter is 1e303 where variances are 1e260: among the checks' farthest points there are some."""
    series, steps = 8, 15
    generator = torch.Generator().manual_seed(9)
    walks = 0.3 * torch.randn(series, steps, generator=generator, dtype=DOUBLE).cumsum(1)
    y = walks + 0.5 * torch.randn(series, steps, generator=generator, dtype=DOUBLE)

    def model(y):
        q, s = (pyro.sample(name, dist.HalfNormal(y.new_ones(()))) for name in "qs")
        zero, one = y.new_zeros(1), y.new_ones(1, 1)
        with pyro.plate("series", len(y)):
            start, step, seen = (dist.Normal(zero, scale).to_event(1) for scale in (1.0, q[None], s[None]))
            pyro.sample("y", dist.GaussianHMM(start, one, step, one, seen, duration=steps), obs=y[..., None])

    fed = pf.Federation(model, (y,), plate="series", num_clients=4)
    found = pf.run(pf.FedEP(), fed, seed=0, progress=False, compile="trace", log_likelihood=False)
    assert found.attrs["audited"] and not found.attrs["doubts"]
    mean, sd = quadrature(y)
    for k, name in enumerate("qs"):
        draws = found.posterior[name].values
        assert abs(draws.mean() - mean[k]) < 0.15 * sd[k]
        assert abs(math.log(draws.std() / sd[k])) < 0.15


def quadrature(y):
    """Means and SDs of the walk's and the noise's scale, by the joint normal density on a grid."""
    grid = torch.linspace(0.005, 1.2, 160, dtype=DOUBLE)
    q, s = (side.flatten() for side in torch.meshgrid(grid, grid, indexing="ij"))
    times = torch.arange(1, y.shape[1] + 1, dtype=DOUBLE)
    walk, noise = torch.minimum(times[:, None], times), torch.eye(len(times), dtype=DOUBLE)
    cover = 1 + q[:, None, None] ** 2 * walk + s[:, None, None] ** 2 * noise
    zero = torch.zeros(len(times), dtype=DOUBLE)
    value = dist.MultivariateNormal(zero, cover[:, None]).log_prob(y).sum(1) - (q**2 + s**2) / 2
    weights = value.softmax(0)
    mean = torch.stack([weights @ q, weights @ s])
    sd = torch.stack([weights @ (part - m) ** 2 for part, m in zip((q, s), mean, strict=True)]).sqrt()
    return mean.tolist(), sd.tolist()
