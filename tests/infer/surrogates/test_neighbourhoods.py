"""A density around points: it is one, its draws are its own, and it follows bent and separate shapes."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.surrogates.neighbourhoods import FREEDOM, around


def points(dim=2, count=100, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_integrates_to_one():
    q = around(points(1))
    at = torch.linspace(-400, 400, 400_001, dtype=torch.float64)
    assert float(torch.trapezoid(q.log_density(at[:, None], FREEDOM).exp(), at)) == pytest.approx(1, abs=1e-4)


def test_its_draws_have_its_density():
    """E_q[p / q] = 1 for a normal p that is inside of it, at independent draws."""
    q = around(points(3) * torch.tensor([1.0, 10.0, 1e-3], dtype=torch.float64))
    scale = torch.tensor([0.5, 5.0, 5e-4], dtype=torch.float64)
    z = q.sample(20_000, FREEDOM, torch.Generator().manual_seed(1))
    ratio = (dist.Normal(0.0, scale).to_event(1).log_prob(z) - q.log_density(z, FREEDOM)).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(len(z))


def test_points_on_a_line_have_a_density():
    line = torch.linspace(-1, 1, 50, dtype=torch.float64)
    q = around(torch.stack([line, 2 * line], 1))
    assert bool(q.log_density(q.sample(100, FREEDOM, torch.Generator().manual_seed(0)), FREEDOM).isfinite().all())


def squared(y):
    t = pyro.sample("t", dist.Normal(y.new_tensor(0.0), 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t.square(), 1.0), obs=y)


def test_particles_at_two_modes_are_weighed():
    """The evidence of both modes, and the SD between them, against a sum over a grid."""
    y = torch.tensor([1.2, 2.1, 1.7, 0.9, 2.6], dtype=torch.float64)
    fed = pf.Federation(squared, (y,), plate="data", num_clients=2)
    found = pf.run(pf.FedAIS(surrogates=pf.DSVGD()), fed, progress=False, audit=False)
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    value = dist.Normal(0.0, 2.0).log_prob(grid) + dist.Normal(grid.square()[:, None], 1.0).log_prob(y).sum(1)
    evidence = float(torch.trapezoid(value.exp(), grid).log())
    figures = found.federation
    assert abs(float(figures["log_evidence"][-1]) - evidence) < 4 * float(figures["log_evidence_se"][-1])
    weights = (value - value.max()).exp()
    sd = float(((weights * grid.square()).sum() / weights.sum()).sqrt())
    assert np.std(found.posterior["t"].values) == pytest.approx(sd, rel=0.02)
