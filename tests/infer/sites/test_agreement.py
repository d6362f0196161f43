"""Expectations at as many points as they need: exact where few tell, all points where they do not, client by client."""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.func import grad, hessian, vmap

import pyro_fed as pf
from pyro_fed.density.derivatives import derivatives
from pyro_fed.density.derivatives.nodes import RULE_TOLERANCE, as_many_as_needed
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.memory import count_in_memory
from pyro_fed.ops.points import standardised_sobol

MEAN = torch.tensor([[0.3, -1.0], [2.0, 0.5]], dtype=torch.float64)
ROOT = torch.tensor([[[0.5, 0.0], [0.2, 0.3]], [[1.5, 0.0], [-0.7, 2.0]]], dtype=torch.float64)


def spread(count):
    return (MEAN + (ROOT @ standardised_sobol(count, 2).mT).movedim(2, 0)).contiguous()


def counted(*densities):
    """Means of the derivatives of each client's density, and the numbers of points that were asked for."""
    asked = []

    def means(points):
        asked.append(len(points))
        parts = []
        for client, density in enumerate(densities):
            at = points[:, client]
            parts.append([vmap(f)(at).mean(0) for f in (density, grad(density), lambda z, d=density: -hessian(d)(z))])
        return Moments(*(torch.stack(part) for part in zip(*parts, strict=True)))

    return means, asked


def quadratic(z):
    return -(z * z).sum() - z[0] * z[1] + 3 * z[0]


def bent(z):
    return -torch.exp(2 * z[0]) - 8 * torch.cos(3 * z[1])


def test_a_quadratic_needs_the_fewest_points():
    means, asked = counted(quadratic, quadratic)
    found = as_many_as_needed(spread(128), means)
    assert asked == [1, 8]
    score = -2 * MEAN - MEAN.flip(1) + torch.tensor([3.0, 0.0])
    assert torch.allclose(found.score, score, atol=1e-12)
    assert torch.allclose(found.curvature, torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64), atol=1e-12)


def test_where_few_disagree_all_points_are_taken_and_another_client_stays_as_it_is():
    means, asked = counted(quadratic, bent)
    found = as_many_as_needed(spread(128), means)
    assert asked == [1, 8, 16, 32, 128]
    every = means(spread(128))
    assert torch.equal(found.curvature[1], every.curvature[1])
    alone, _ = counted(quadratic, quadratic)
    assert torch.equal(found.score[0], as_many_as_needed(spread(128), alone).score[0])


def test_what_is_no_number_is_not_taken_for_agreement():
    means, asked = counted(quadratic, lambda z: (z[0] - 10.0).sqrt() + 0 * z.sum())
    assert not as_many_as_needed(spread(128), means).score[1].isfinite().all()
    assert asked[-1] == 128


def test_more_parameters_than_few_points_have_a_covariance_of_go_on_as_before():
    points = standardised_sobol(64, 24).unsqueeze(1)
    asked = []

    def means(some):
        asked.append(len(some))
        return Moments(some.sum((0, 2)), some.mean(0), torch.eye(24)[None])

    as_many_as_needed(points, means)
    assert asked == [64]


def model(x, hospital, num_hospitals, y=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.5))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("hospital", num_hospitals):
        a = pyro.sample("a", dist.Normal(mu, tau))
    with pyro.plate("patient", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=a[hospital] + x @ beta), obs=y)


def hospitals(patients, count=4):
    rng = np.random.default_rng(0)
    hospital = np.repeat(np.arange(count), patients)
    x = rng.normal(size=(len(hospital), 2))
    logits = rng.normal(-1, 0.7, count)[hospital] + x @ np.array([0.5, -0.5])
    y = (rng.random(len(hospital)) < 1 / (1 + np.exp(-logits))).astype(float)
    args = (torch.tensor(x), torch.tensor(hospital), count, torch.tensor(y))
    return pf.Federation(model, args, plate="hospital", rows={"patient": "hospital"}, num_clients=2, seed=0)


def test_patients_count_in_blocks_and_few_points_give_the_moments_of_all(monkeypatch):
    """Hospitals with hundreds of patients: blocks hold patients, not hospitals, and 128 points are not needed."""
    fed = hospitals(60)
    problem, batch = fed.problem, fed.client_data().full_batch()
    mean, sds = torch.tensor([-1.0, -0.5, 0.5, -0.5]), torch.tensor([0.15, 0.2, 0.06, 0.06])
    points = (mean + sds * standardised_sobol(128, 4)).unsqueeze(1).expand(-1, 2, -1).contiguous()
    sizes = []
    whole = derivatives.in_blocks

    def watched(points, most):
        sizes.append((len(points), most))
        return whole(points, most)

    monkeypatch.setattr(derivatives, "in_blocks", watched)
    both = []
    for most in (10**12, 0):
        monkeypatch.setattr(derivatives, "MAX_INTEGRATED_NUMBERS", most)
        both.append(derivatives.Derivatives("full", "hessian").of_likelihood(problem, points, batch))
    assert sizes[0][0] == 128 and max(count for count, _ in sizes[1:]) <= 32
    assert sizes[0][1] <= count_in_memory(2 * 120 * problem.num_nodes * problem.dim)  # two clients of 120 patients
    every, few = both
    assert ((few.score - every.score) * sds).abs().max() < RULE_TOLERANCE
    assert ((few.curvature - every.curvature) * sds * sds[:, None]).abs().max() < RULE_TOLERANCE
