"""A client's steps on all its rows: SGD where it is stable, and shorter steps where it is not."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.starts import CENTRAL_DRAWS, central_start


def regression(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def counts(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y)


def data(*scales):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(80, len(scales), generator=noise, dtype=torch.float64) * torch.tensor(scales, dtype=torch.float64)
    return x, x @ (1 / torch.tensor(scales, dtype=torch.float64)) + torch.randn(80, generator=noise).double()


def fitted(model, args, algorithm, rounds):
    fed = pf.Federation(model, args, plate="data", num_clients=1, seed=0)
    found = pf.run(algorithm, fed, num_rounds=rounds, seed=0, progress=False, audit=False)
    return torch.tensor(found["posterior"]["w"].values[0, 0]), fed


def test_stable_steps_are_those_of_sgd_with_momentum():
    """Curvatures of 1, far below 2 (1 + 0.9) / 0.01."""
    args = data(1.0, 1.0)
    found, fed = fitted(regression, args, pf.FedAvg(), 1)
    generator = torch.Generator().manual_seed(0)
    start = central_start(fed.problem, generator)
    ends = []
    for first in (start, start + 1.0):
        w, velocity = first.clone(), torch.zeros(2, dtype=torch.float64)
        for _ in range(20):
            velocity = 0.9 * velocity + args[0].T @ (args[1] - args[0] @ w) / 80
            w = w + 0.01 * velocity
        ends.append(w)
    # SGD on a quadratic is affine in its start: two starts of one's own say where it leads from the run's.
    slope = ends[1] - ends[0]
    one = pf.run(pf.FedAvg(step_size=1e-12), fed, num_rounds=1, seed=0, progress=False, audit=False)
    begun = torch.tensor(one["posterior"]["w"].values[0, 0])
    jacobian = _propagator(args[0])
    torch.testing.assert_close(found, ends[0] + jacobian @ (begun - start), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(slope, jacobian @ torch.ones(2, dtype=torch.float64), rtol=1e-8, atol=1e-8)


def _propagator(x):
    """How the end of twenty steps depends on their start, (2, 2)."""
    hessian, point, velocity = x.T @ x / 80, torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(20):
        velocity = 0.9 * velocity - hessian @ point
        point = point + 0.01 * velocity
    return point


@pytest.mark.parametrize(
    "algorithm", [pf.FedAvg(), pf.infer.FedProx(proximal=1e-9, prior=False)], ids=["FedAvg", "FedProx"]
)
@pytest.mark.parametrize("steepest", [30.0, 300.0])
def test_steps_that_sgd_would_leave_for_infinity_end_at_least_squares(algorithm, steepest):
    """Curvatures of 900 and 90,000 by a step of 0.01, where 380 is the most that is stable."""
    args = data(steepest, steepest)
    found, _ = fitted(regression, args, algorithm, 20)
    torch.testing.assert_close(found, torch.linalg.lstsq(*args).solution, rtol=1e-5, atol=1e-8)


def test_rates_that_are_exponentials_are_found():
    """The maximum of the likelihood, by Newton's method written out."""
    noise = torch.Generator().manual_seed(1)
    x = torch.cat([torch.ones(200, 1), torch.randn(200, 3, generator=noise)], 1).double()
    y = torch.poisson((x @ torch.tensor([3.0, 1.0, -1.0, 0.5]).double()).exp(), generator=noise)
    found, _ = fitted(counts, (x, y), pf.FedAvg(), 100)
    w = torch.tensor([3.0, 0.0, 0.0, 0.0]).double()
    for _ in range(50):
        rate = (x @ w).exp()
        w = w + torch.linalg.solve((x.T * rate) @ x, x.T @ (y - rate)).clamp(-1, 1)
    torch.testing.assert_close(found, w, rtol=1e-3, atol=1e-3)


def test_a_start_is_near_the_prior_s_mean():
    """A tenth of the prior's SD of one, by 1,000 normal numbers: their SD is within 12 % but once in 10^7 seeds."""
    _, fed = fitted(regression, data(*[1.0] * 50), pf.FedAvg(), 1)
    starts = torch.stack([central_start(fed.problem, torch.Generator().manual_seed(seed)) for seed in range(20)])
    assert abs(starts.std() - CENTRAL_DRAWS**-0.5) < 0.12 * CENTRAL_DRAWS**-0.5
    assert abs(starts.mean()) < 5 * (1000 * CENTRAL_DRAWS) ** -0.5
