"""Torch functions that give way to others while a model runs: the same values, at every point, under `vmap`."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late
from torch.func import grad, hessian, vmap

import pyro_fed as pf
from pyro_fed.density.running.handlers import run_by_pyro
from pyro_fed.density.running.torch_modes import factor_or_nan, log_sigmoid, prefix_products

stats = late("scipy.stats")

VALUES = torch.linspace(-1.2, 1.3, 14, dtype=torch.float64).reshape(2, 7)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_prefix_products_are_the_cumulative_product_with_its_derivatives(dim):
    def cubed(product):
        return lambda values: product(values, dim).pow(3).sum()

    torch.testing.assert_close(prefix_products(VALUES, dim), torch.cumprod(VALUES, dim))
    torch.testing.assert_close(grad(cubed(prefix_products))(VALUES), grad(cubed(torch.cumprod))(VALUES))
    torch.testing.assert_close(hessian(cubed(prefix_products))(VALUES), hessian(cubed(torch.cumprod))(VALUES))


def test_a_matrix_without_a_factor_has_nan_and_the_others_theirs():
    good = torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    both = torch.stack([good, torch.ones_like(good) - torch.eye(2, dtype=good.dtype)])
    found = vmap(factor_or_nan)(both)
    assert bool(found[1].isnan().all())
    torch.testing.assert_close(found[0], torch.linalg.cholesky(good))


def test_pyros_own_algorithms_run_a_model_without_a_mode_and_factors_are_nan_all_the_same():
    with run_by_pyro(torch.float64, {}):
        assert torch._C._len_torch_function_stack() == 0
        assert bool(torch.linalg.cholesky(-torch.eye(2)).isnan().all())
        assert not torch.linalg.cholesky(torch.eye(2)).isnan().any()
    with pytest.raises(RuntimeError, match="positive-definite"):
        torch.linalg.cholesky(-torch.eye(2))


def test_functions_are_looked_for_until_a_model_is_known_to_call_none_that_gives_way():
    modes = []

    def plain(x):
        modes.append(torch._C._len_torch_function_stack())
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(m, 1.0), obs=x)

    def with_simplex(x):
        modes.append(torch._C._len_torch_function_stack())
        p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(p[0], 1.0), obs=x)

    x = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    for model, names in ((plain, set()), (with_simplex, {"cumprod"})):
        fed = pf.Federation(model, (x,), plate="data", num_clients=2)
        noticed, z = fed.problem.bound.noticed, torch.zeros(fed.problem.dim, dtype=torch.float64)
        assert noticed.names == names and noticed.plain is not bool(names)
        modes.clear()
        value = fed.problem.log_prior(z)
        assert modes == [1 if names else 0]
        assert bool(value.isfinite())


def test_a_simplex_has_its_dirichlet_posterior_and_no_warning_of_torch():
    """Warnings are errors here: derivatives of `torch.cumprod` itself came with one."""
    counts = torch.tensor([70, 110, 120])

    def model(y):
        p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Categorical(p), obs=y)

    y = torch.repeat_interleave(torch.arange(3), counts)
    fed = pf.Federation(
        model, (y,), plate="data", num_clients=3, partition=pf.partition.SortedBy(y), dtype=torch.float64
    )
    found = pf.run(pf.FedEP(), fed, progress=False, num_draws=20_000, compile="off").posterior["p"].values[0]
    exact = stats.dirichlet(np.array([1.0, 2.0, 3.0]) + counts.numpy())
    sd = np.sqrt(exact.var())
    # 0.05 is seven standard errors of the mean of 20,000 draws, ten of their SD.
    np.testing.assert_allclose((found.mean(0) - exact.mean()) / sd, 0, atol=0.05)
    np.testing.assert_allclose(found.std(0) / sd, 1, atol=0.05)


def correlated(y):
    """Its covariance is none where the first Newton step from 0 leads."""
    r = pyro.sample("r", dist.Normal(0.0, 3.0))
    covariance = torch.eye(2, dtype=y.dtype) + r * (1 - torch.eye(2, dtype=y.dtype))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2, dtype=y.dtype), covariance), obs=y)


@pytest.fixture(scope="module")
def correlation():
    """y with r = 0.95, in two halves, and its log posterior on a grid, by scipy."""
    rng = np.random.default_rng(0)
    y = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], size=60)
    grid = np.linspace(0.8, 0.999, 2001)
    log_density = np.array([stats.multivariate_normal([0, 0], [[1, r], [r, 1]]).logpdf(y).sum() for r in grid])
    log_density += stats.norm(0, 3).logpdf(grid)
    return pf.Federation(correlated, (y,), plate="data", num_clients=2), grid, log_density


def test_a_covariance_that_is_none_has_no_density(correlation):
    fed, grid, expected = correlation
    z = torch.tensor([[grid[700]], [1.2], [grid[1500]]], dtype=torch.float64)
    found = fed.problem.log_prior(z) + fed.problem.log_lik(z)
    assert bool(found[1].isnan())
    np.testing.assert_allclose(found[[0, 2]], expected[[700, 1500]], rtol=1e-10)


@pytest.mark.parametrize("executor", ["vectorised", "sequential"])
def test_newtons_method_turns_back_where_there_is_no_density(correlation, executor):
    fed, grid, log_density = correlation
    found = pf.run(pf.FedLaplace(), fed, progress=False, executor=executor, num_draws=2000, compile="off", audit=False)
    sd = found.posterior["r"].values.std()
    assert abs(float(found.posterior["r"].median()) - grid[log_density.argmax()]) < 0.2 * sd


def test_a_mask_is_written_by_under_vmap():
    """As torch's Multinomial writes zero over the logarithm of a probability that nothing was drawn from."""
    from pyro_fed.density.running.torch_modes import Replacing

    def log_prob(logits):
        with Replacing():
            return torch.distributions.Multinomial(5, logits=logits, validate_args=False).log_prob(counts)

    counts = torch.tensor([[2.0, 0.0, 3.0], [1.0, 4.0, 0.0]], dtype=torch.float64)
    logits = torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[0, 0, 1] = -torch.inf
    expected = torch.stack([torch.distributions.Multinomial(5, logits=one).log_prob(counts) for one in logits])
    torch.testing.assert_close(torch.func.vmap(log_prob)(logits), expected, rtol=0, atol=0)
    written = torch.arange(6.0).reshape(3, 2)
    with Replacing():
        written[written[:, 0] > 1] = 9.0
    assert written.tolist() == [[0.0, 1.0], [9.0, 9.0], [9.0, 9.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_log_sigmoid_of_cuda_has_its_values_and_two_derivatives(dtype):
    """At zero and far from it, by their closed forms; torch's own second derivative is off by 0.1 % at 30."""
    values = torch.tensor([-200.0, -60.0, -49.0, -1.0, 0.0, 1e-3, 1.0, 30.0, 49.0, 51.0, 80.0], dtype=dtype)
    wide = values.double()
    exact = (
        wide.clamp_max(0) - torch.log1p((-wide.abs()).exp()),
        torch.sigmoid(-wide),
        -torch.sigmoid(wide) * torch.sigmoid(-wide),
    )
    found = (log_sigmoid, grad(log_sigmoid), grad(grad(log_sigmoid)))
    for one, function in zip(exact, found, strict=True):
        torch.testing.assert_close(vmap(function)(values).double(), one, rtol=10 * torch.finfo(dtype).eps, atol=1e-20)
