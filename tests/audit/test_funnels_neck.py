"""A funnel's neck that draws lack: weighted points are drawn in units of the effects' scale, or have none there."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.algorithm.record import Record
from pyro_fed.audit.evidence import Evidence, Unknown
from pyro_fed.audit.moments import wrong_moments
from pyro_fed.federation.federation import Federation

GROUPS, OF_EACH = 4, 3


def centred(group, y):
    tau = pyro.sample("tau", dist.HalfNormal(2.0))
    with pyro.plate("groups", GROUPS):
        theta = pyro.sample("theta", dist.Normal(0.0, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def exact(means, count, generator):
    """Draws of the posterior: log tau on a grid, and effects that are Gaussian given it."""
    u = torch.linspace(-20, 3, 20_000, dtype=torch.float64)
    variance = (2 * u).exp() + 1 / OF_EACH
    log_p = u - (2 * u).exp() / 8 - (variance.log() * GROUPS + means.square().sum() / variance) / 2
    at = u[torch.multinomial(log_p.softmax(0), count, True, generator=generator)][:, None]
    shrunk = (2 * at).exp() / ((2 * at).exp() + 1 / OF_EACH)
    noise = torch.randn(count, GROUPS, generator=generator, dtype=torch.float64)
    return torch.cat([at, shrunk * means + (shrunk / OF_EACH).sqrt() * noise], 1)


@pytest.fixture(scope="module")
def posed():
    """The problem, and draws of its posterior."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(GROUPS * OF_EACH) % GROUPS
    y = 0.5 * torch.randn(GROUPS, generator=generator, dtype=torch.float64)[group]
    y = y + torch.randn(len(group), generator=generator, dtype=torch.float64)
    means = torch.stack([y[group == g].mean() for g in range(GROUPS)])
    problem = Federation(centred, (group, y), plate="data", num_clients=2).problem
    assert list(problem.sites) == ["tau", "theta"]
    return problem, exact(means, 4000, generator)


def evidence(problem, draws):
    return Evidence(Unknown("chains"), None, problem, {}, draws[None], Record(["1", "2"]), 0)


def test_exact_draws_are_left_alone(posed):
    problem, draws = posed
    assert not bool(wrong_moments(evidence(problem, draws).moments).any())


def test_weights_tell_how_much_the_neck_adds(posed):
    """Without the tenth of the draws that is deepest the SD of log tau is a third less, which is told to a tenth."""
    problem, draws = posed
    lacking = draws[draws[:, 0] > draws[:, 0].quantile(0.1)]
    missed = float(draws[:, 0].std().log() - lacking[:, 0].std().log())
    looked = evidence(problem, lacking)
    assert wrong_moments(looked.moments)[1, 0]
    assert float(looked.by_weights.log_sd[0]) == pytest.approx(missed, abs=0.1)
