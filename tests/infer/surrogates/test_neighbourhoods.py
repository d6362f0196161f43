"""A density around points: it is one, its draws are its own, and it follows bent and separate shapes."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.infer.surrogates.proposals import around, around_points
from pyro_fed.ops.adaptive_importance import FREEDOM
from pyro_fed.ops.importance import flattened


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


def bent(y):
    a = pyro.sample("a", dist.Normal(y.new_tensor(0.0), 1.0))
    b = pyro.sample("b", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b + 0.5 * a.square(), 0.5), obs=y)


@pytest.mark.filterwarnings("ignore:log_evidence is not known")  # of one seed: a Pareto k of 1.05, an infinite error
@pytest.mark.parametrize("seed", range(3))
def test_draws_around_weighted_draws_follow_a_ridge(seed):
    """Evidence and SDs by a grid; draws by the sites alone are worth 1,100 of 8,000."""
    y = torch.tensor([0.4, -0.1, 0.3, 0.6, 0.1, 0.2], dtype=torch.float64)
    fed = pf.Federation(bent, (y,), plate="data", num_clients=3)
    options = {"progress": False, "audit": False, "num_draws": 8000, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        once = pf.run(pf.FedAIS(), fed, **options).federation
    found = pf.run(pf.FedAIS(surrogates=pf.FedAIS()), fed, **options)
    axis = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    value = dist.Normal(0.0, 1.0).log_prob(z).sum(1)
    value = value + dist.Normal((z[:, 1] + 0.5 * z[:, 0].square())[:, None], 0.5).log_prob(y).sum(1)
    figures = found.federation
    evidence = float(value.logsumexp(0)) + 2 * math.log(0.01)
    assert abs(float(figures["log_evidence"][-1]) - evidence) < 4 * float(figures["log_evidence_se"][-1])
    assert float(figures["effective_draws"][-1]) > 2 * float(once["effective_draws"][-1])
    weights = value.softmax(0)
    mean = weights @ z
    sd = (weights @ (z - mean).square()).sqrt()
    drawn = torch.stack([torch.from_numpy(found.posterior[name].values[0]) for name in "ab"], -1)
    assert ((drawn.mean(0) - mean) / sd).abs().max() < 0.1
    assert (drawn.std(0) / sd).log().abs().max() < math.log(1.1)


def test_draws_of_no_weight_but_one_leave_enough_to_propose_around():
    """A density that rounding lifts by thousands of nats at one draw: the others are proposed around, too."""
    log_weights = dist.Normal(0.0, 1.0).sample((4000,)).double()
    log_weights[17] = 3226.0
    weights = flattened(log_weights, 100)
    assert float(1 / weights.square().sum()) == pytest.approx(100, rel=1e-3)
    assert torch.equal(weights.argsort(stable=True), log_weights.argsort(stable=True))
    whole = log_weights[:17].softmax(0)
    assert torch.equal(flattened(log_weights[:17], 2), whole) and float(1 / whole.square().sum()) > 2


def test_points_that_coincide_leave_nothing_to_propose_around():
    """As draws of a start without an SD: named, in place of the words of a factorisation."""
    same = torch.ones(50, 2, dtype=torch.float64)
    same[:, 1] += torch.arange(50)
    with pytest.raises(pf.errors.DivergenceError, match=r"50 points .* do not differ in every parameter"):
        around_points(None, same, 100, torch.Generator())
