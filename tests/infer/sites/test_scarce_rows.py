"""Few rows a parameter: predictors that are wide beside what a row's function varies over, against fine quadrature."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.derivatives import nodes
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.rowwise import expected_sums, scarce
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.gaussian import FullGaussian

F64 = torch.float64
ROWS, DIM = 80, 100
#: Equally spaced nodes over ±9 SDs, far more than rows are integrated with.
FINE = torch.linspace(-9, 9, 4001, dtype=F64)
WEIGHT = torch.softmax(-FINE.square() / 2, 0)


def separable(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def robust(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(3.0, x @ w, scale), obs=y)


@pytest.fixture(scope="module")
def rows():
    """A plane parts the classes, as it always does with more covariates than rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=F64)
    return x, (x @ torch.randn(DIM, generator=generator, dtype=F64) > 0).to(F64)


def expectations(x, y, mean, covariance):
    """E_q of the log-likelihood, its gradient and its negative Hessian, by 4,001 nodes a row."""
    centre, sd = x @ mean, ((x @ covariance) * x).sum(1).sqrt()
    u = centre + FINE.unsqueeze(1) * sd
    p = u.sigmoid()
    value = WEIGHT @ (y * u - torch.nn.functional.softplus(u))
    return value.sum(), x.T @ (y - WEIGHT @ p), x.T @ ((WEIGHT @ (p * (1 - p))).unsqueeze(1) * x)


def test_wide_predictors_have_the_expectations_of_fine_quadrature(rows):
    """Predictors with SDs of 10: nine Gauss-Hermite nodes miss the curvature by more than half of it."""
    x, y = rows
    federation = pf.Federation(separable, rows, plate="data", num_clients=3)
    mean, covariance = torch.linspace(-0.5, 0.5, DIM, dtype=F64), torch.eye(DIM, dtype=F64)
    root = torch.eye(DIM, dtype=F64).expand(3, -1, -1)
    data = federation.client_data()
    assert scarce(federation.problem)
    found = [part.sum(0) for part in expected_sums(federation.problem, mean.expand(3, -1), root, data)]
    for ours, exact in zip(found, expectations(x, y, mean, covariance), strict=True):
        torch.testing.assert_close(ours, exact, rtol=2e-3, atol=2e-3 * float(exact.abs().max()))


def test_so_they_have_with_a_scale_of_their_own(rows):
    """31 nodes for the log scale and 4,001 for the predictors have the same value, and the same score of the scale."""
    x, y = rows
    federation = pf.Federation(robust, rows, plate="data", num_clients=1)
    problem, dim = federation.problem, DIM + 1
    mean, spread = torch.zeros(dim, dtype=F64), 0.5
    assert [site.start for name, site in problem.sites.items() if name == "scale"] == [DIM]
    root = spread * torch.eye(dim, dtype=F64)[None]
    found = expected_sums(problem, mean[None], root, federation.client_data())
    line, weight = (part.squeeze() for part in nodes.rule(31, 1, 0))
    u, scale = FINE.unsqueeze(1) * spread * x.norm(dim=1), (spread * line).exp()
    each = dist.StudentT(3.0, u, scale.reshape(-1, 1, 1)).log_prob(y)
    value = torch.einsum("k,n,knr->", weight, WEIGHT, each)
    torch.testing.assert_close(found.value[0], value, rtol=1e-3, atol=0)
    along = torch.einsum("k,n,knr->", weight * line / spread, WEIGHT, each)  # E[f ε] / σ, by parts
    torch.testing.assert_close(found.score[0, DIM], along, rtol=3e-3, atol=0)


@pytest.mark.parametrize("order, numbers, wide", [(9, 1, 1), (7, 2, 1), (7, 2, 2), (5, 3, 1), (5, 3, 3), (0, 5, 2)])
def test_rules_have_the_moments_of_a_standard_normal(order, numbers, wide):
    at, weight = nodes.rule(order, numbers, wide)
    torch.testing.assert_close(weight.sum(), torch.ones((), dtype=F64))
    assert float((weight @ at).abs().max()) < 1e-12
    torch.testing.assert_close((at.T * weight) @ at, torch.eye(numbers, dtype=F64), rtol=0, atol=2e-3)


def test_rows_with_weights_have_the_same_expectations(rows):
    federation = pf.Federation(separable, rows, plate="data", num_clients=3)
    problem, data = federation.problem, federation.client_data()
    q = FullGaussian.from_moments(torch.zeros(3, DIM, dtype=F64), torch.eye(DIM, dtype=F64).expand(3, -1, -1))
    batch = data.full_batch()
    derivatives = Derivatives("full", "hessian")
    whole = expected_sums(problem, q.mean(), q.root(), data)
    for factor in (1.0, 2.5):
        found = derivatives.under(problem, q.mean(), q.root(), Batch(batch.rows, batch.weight * factor))
        for ours, theirs in zip(found, whole, strict=True):
            torch.testing.assert_close(ours, factor * theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["FedEP", "P2PVI"])
def test_the_answer_is_a_fixed_point_of_exact_expectations(rows, name):
    """E_q[∇ log p] = 0 and precision = -E_q[∇² log p], what the nearest Gaussian has; within a hundredth of an SD."""
    x, y = rows
    algorithm, options = {"FedEP": (pf.FedEP(), {}), "P2PVI": (pf.P2PVI(), {"graph": pf.graph.complete(4)})}[name]
    federation = pf.Federation(separable, rows, plate="data", num_clients=4, partition=pf.partition.SortedBy(x[:, 0]))
    idata = pf.run(algorithm, federation, progress=False, num_draws=20_000, audit=False, **options)
    assert idata.attrs["converged"] == 1
    draws = torch.as_tensor(idata.posterior["w"].values).reshape(-1, DIM)
    mean, covariance = draws.mean(0), draws.T.cov()
    _, score, curvature = expectations(x, y, mean, covariance)
    step = covariance @ (score - mean)
    assert float((step / covariance.diagonal().sqrt()).abs().max()) < 0.03
    exact = torch.linalg.inv(curvature + torch.eye(DIM, dtype=F64)).diagonal().sqrt()
    assert float((covariance.diagonal().sqrt() / exact - 1).abs().max()) < 0.03
