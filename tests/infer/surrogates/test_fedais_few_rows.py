"""Log-likelihoods by few rows are those of all rows, or all rows are taken."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.conventions.limits import SAME_NATS
from pyro_fed.density.derivatives import few_rows
from pyro_fed.density.derivatives.scores import clients_log_likelihoods
from pyro_fed.density.rows.batches import ClientData

ROWS, DIM = 24_000, 3


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(heavy=0):
    """Of a logistic regression, some of them so far out that they decide."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    x[:heavy] *= 300.0
    chance = torch.sigmoid(x @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64))
    return x, (torch.rand(ROWS, generator=generator, dtype=torch.float64) < chance).to(x)


def clients(problem, sizes):
    """Clients of so many rows one after the other, padded, and the same draws for each."""
    index = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    first = 0
    for client, size in enumerate(sizes):
        index[client, :size] = torch.arange(first, first + size)
        first += size
    return ClientData(problem.rows, index, torch.tensor(sizes))


def draws_of(x, y, count):
    """Of Laplace's approximation, for three clients, and how far each is from the mode in SDs."""
    w, eye = x.new_zeros(DIM), torch.eye(DIM, dtype=x.dtype)
    for _ in range(20):
        p = torch.sigmoid(x @ w)
        precision = x.T @ (x * (p * (1 - p)).unsqueeze(1)) + eye
        w = w + torch.linalg.solve(precision, x.T @ (y - p) - w)
    away = torch.randn(3, count, DIM, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    return w + (away[:1] @ torch.linalg.cholesky(precision.inverse()).T).expand(3, -1, -1)


@pytest.mark.parametrize("sizes", [(8000, 8000, 8000), (20_000, 3999, 1), (24_000, 0, 0)])
def test_few_rows_stand_for_all(sizes, monkeypatch):
    x, y = rows()
    problem = pf.Federation(logistic, (x, y), plate="data", num_clients=3).problem
    data, draws = clients(problem, sizes), draws_of(x, y, 400)
    exact = clients_log_likelihoods(problem, draws, data)
    taken = []
    spied = few_rows.clients_log_likelihoods

    def spy(problem, points, some):
        taken.append(int(some.num_rows.sum()) * points.shape[1])
        return spied(problem, points, some)

    monkeypatch.setattr(few_rows, "clients_log_likelihoods", spy)
    found = few_rows.log_likelihoods_at(problem, draws, data)
    assert sum(taken) < 0.3 * ROWS * 400
    assert float((found - exact).sum(0).abs().max()) < SAME_NATS
    torch.testing.assert_close(found, exact, rtol=0, atol=SAME_NATS)


def test_all_rows_are_taken_where_single_ones_decide():
    x, y = rows(heavy=40)
    problem = pf.Federation(logistic, (x, y), plate="data", num_clients=3).problem
    data, draws = clients(problem, (12_000, 11_000, 1000)), draws_of(*rows(), 400)
    exact = clients_log_likelihoods(problem, draws, data)
    found = few_rows.log_likelihoods_at(problem, draws, data)
    torch.testing.assert_close(found[0], exact[0], rtol=1e-12, atol=0)  # its rows decide
    torch.testing.assert_close(found[1:], exact[1:], rtol=0, atol=SAME_NATS)


def test_the_control_variate_is_a_parabola_with_its_gradient():
    """Of two clients, by the formula at each point, and by differentiation."""
    generator = torch.Generator().manual_seed(2)
    level, slope = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2,), (2, 3)))
    curvature = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    away = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    missed = few_rows.Quadratic(level, slope, curvature + curvature.mT)
    expected = torch.stack(
        [
            torch.stack([a + b @ w - w @ e @ w / 2 for w in points])
            for a, b, e, points in zip(*missed, away, strict=True)
        ]
    )
    torch.testing.assert_close(missed.value(away), expected)
    (gradient,) = torch.autograd.grad(expected.sum(), away)
    torch.testing.assert_close(missed.gradient(away), gradient)


@pytest.mark.parametrize(
    ("dim", "rows", "numbers"), [(3, 16_383, []), (3, 16_384, [4096]), (200, 200_000, [10_000, 40_000])]
)
def test_so_many_rows_are_tried(dim, rows, numbers):
    assert list(few_rows.row_numbers(dim, rows)) == numbers
