"""Places that are narrower than where the draws are: chains with steps for the draws' own width never enter them."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.audit.moments import Quantities, wrong_moments
from pyro_fed.audit.motion import moments_by_chains
from pyro_fed.audit.target import Target
from pyro_fed.federation.federation import Federation

GROUPS, OF_EACH, NOISE = 8, 10, 0.3


def products(group, y):
    """Effects t e, written without a centre: they are known, so that e is as narrow as t is large."""
    t = pyro.sample("t", dist.HalfCauchy(1.0))
    with pyro.plate("groups", GROUPS):
        e = pyro.sample("e", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(t * e[group], NOISE), obs=y)


@pytest.fixture(scope="module")
def posed():
    """The problem, and draws of its posterior: t on a grid, e given t is Gaussian."""
    generator = torch.Generator().manual_seed(6)
    group = torch.arange(GROUPS * OF_EACH) % GROUPS
    effects = 0.8 * torch.randn(GROUPS, generator=generator, dtype=torch.float64)
    y = effects[group] + NOISE * torch.randn(len(group), generator=generator, dtype=torch.float64)
    means = torch.stack([y[group == g].mean() for g in range(GROUPS)])
    u = torch.linspace(-6, 5, 4000, dtype=torch.float64)
    variance = u.exp().square() + NOISE**2 / OF_EACH
    log_p = u - (2 * u).exp().log1p() - (variance.log() * GROUPS + means.square().sum() / variance) / 2
    at = u[torch.multinomial(log_p.softmax(0), 4000, True, generator=generator)]
    precision = 1 + OF_EACH * (2 * at).exp() / NOISE**2
    centre = at.exp()[:, None] * OF_EACH * means / NOISE**2 / precision[:, None]
    e = centre + torch.randn(centre.shape, generator=generator, dtype=torch.float64) / precision.sqrt()[:, None]
    federation = Federation(products, (group, y), plate="data", num_clients=2)
    return federation.problem, torch.cat([at[:, None], e], 1)


def found(problem, draws):
    target, quantities = Target.of(problem, draws), Quantities.of(problem, draws)
    return moments_by_chains(target, quantities, draws, torch.Generator().manual_seed(0))


def test_exact_draws_are_left_alone(posed):
    problem, draws = posed
    assert list(problem.sites) == ["t", "e"]
    assert not wrong_moments(found(problem, draws)).any()


def test_draws_that_lack_the_neck_are_found_wrong(posed):
    """The posterior's draws without those of the largest t, a tenth: the SD of log t is 1.28 times theirs."""
    problem, draws = posed
    lacking = draws[draws[:, 0] < draws[:, 0].quantile(0.9)]
    result = found(problem, lacking)
    assert wrong_moments(result).any()
    missed = draws[:, 0].std().log() - lacking[:, 0].std().log()
    assert abs(float(result.log_sd[0] - missed)) < 3 * float(result.log_sd_error[0])
