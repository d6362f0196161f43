"""Nine modes, of which the outer ones have a few per cent of the mass: each has draws, or its absence is told."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.audit.audit import wrong_draw_findings
from pyro_fed.conventions.limits import MATTERS, NEGLIGIBLE_MASS, SD_MATTERS
from tests.helpers.evidence import evidence_of


def wave(y):
    w = pyro.sample("w", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.sin(5 * w).expand(len(y)), 0.3), obs=y)


ROWS = torch.tensor([0.3, 0.5, 0.1, 0.6, 0.2, 0.45], dtype=torch.float64)
GRID = torch.linspace(-5, 5, 20_001, dtype=torch.float64)


def density():
    """Of the posterior on `GRID`, summing to one, by the formula; and the minima between its modes."""
    log_p = dist.Normal(0.0, 1.0).log_prob(GRID) + dist.Normal(torch.sin(5 * GRID), 0.3).log_prob(ROWS[:, None]).sum(0)
    p = log_p.softmax(0)
    lowest = (p[1:-1] < p[:-2]) & (p[1:-1] < p[2:])
    return p, GRID[1:-1][lowest]


def shares(draws):
    """Of the modes among draws (S,), and of the mass."""
    p, edges = density()
    count = len(edges) + 1
    mass = torch.zeros(count, dtype=torch.float64).index_add_(0, torch.bucketize(GRID, edges), p)
    return torch.bincount(torch.bucketize(draws, edges), minlength=count) / len(draws), mass


def exact(seed, count=1000):
    u = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return GRID[torch.searchsorted(density()[0].cumsum(0), u).clamp_max(len(GRID) - 1)]


@pytest.mark.parametrize("seed", range(4))
def test_exact_draws_are_not_doubted(seed):
    assert wrong_draw_findings(evidence_of(wave, (ROWS,), exact(seed)[:, None], seed=seed)) == []


def test_a_mode_without_draws_is_told_though_no_moment_needs_it():
    """That at 1.81 has 4.9 % of the mass: without it the mean and the SD are within the limits."""
    draws = exact(0, 2000)
    without = draws[draws < 1.5]
    assert float(without.std() / draws.std()) > 1 / SD_MATTERS
    assert abs(float((without.mean() - draws.mean()) / draws.std())) < MATTERS
    (said,) = wrong_draw_findings(evidence_of(wave, (ROWS,), without[:, None]))
    assert said.code == "mode_without_draws" and "where none of these draws is: 'w' is 1.8" in said.text


@pytest.mark.parametrize("seed", range(3))
def test_particles_are_in_every_mode(seed):
    """Steps of a part of all modes' SD carried the particles of a fifth of the mass over to the next mode."""
    fed = pf.Federation(wave, (ROWS,), plate="data", num_clients=3)
    idata = pf.run(pf.DSVGD(), fed, progress=False, log_likelihood=False, compile="trace", seed=seed)
    held, mass = shares(torch.from_numpy(idata["posterior"]["w"].values.ravel()).double())
    assert bool((held[mass > NEGLIGIBLE_MASS] > 0).all())
    assert float((held - mass).abs().sum()) / 2 < 0.15  # a hundred exact draws: 0.10 ± 0.02
    assert idata.attrs["doubts"] == ""
