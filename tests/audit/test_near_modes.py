"""The audit's densities by modes of rows' own latents that are known near the draws are those without them."""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.audit.target import Target, near_draws
from pyro_fed.conventions.limits import NEGLIGIBLE


def counts(y):
    """A count in each row, with an effect of its own."""
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1.0))
    tau = pyro.sample("tau", dist.LogNormal(y.new_zeros(()), 1.0))
    with pyro.plate("data", len(y)):
        effect = pyro.sample("effect", dist.Normal(mu, tau))
        pyro.sample("y", dist.Poisson(effect.exp()), obs=y)


def test_known_modes_change_no_density():
    generator = torch.Generator().manual_seed(0)
    y = torch.poisson(
        (0.5 + 0.7 * torch.randn(12, generator=generator, dtype=torch.float64)).exp(), generator=generator
    )
    problem = pf.Federation(counts, (y,), plate="data", num_clients=3).problem.doubled()
    draws = torch.tensor([0.5, -0.4]) + 0.15 * torch.randn(40, 2, generator=generator, dtype=torch.float64)
    whole = Target.of(problem, draws)
    target = near_draws(whole, draws)
    assert target.near is not None and 3 * target.evaluations < whole.evaluations == target.far_evaluations
    white = target.white(draws)
    far = white * 2 * target.near.reach / white.norm(dim=1, keepdim=True)
    (value, score), (exact, slope) = (one(torch.cat([white, far])) for one in (target, replace(target, near=None)))
    near = slice(len(white))
    assert float((value - exact)[near].abs().max()) < NEGLIGIBLE
    assert float((score - slope)[near].norm(dim=1).max()) < NEGLIGIBLE
    torch.testing.assert_close(value[len(white) :], exact[len(white) :])
    torch.testing.assert_close(score[len(white) :], slope[len(white) :])
