"""Gaussians in natural parameters against torch.distributions, quadrature and their own algebra."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fed.ops.gaussian import STRUCTURES, DiagGaussian, FullGaussian, ImproperGaussianError
from pyro_fed.ops.matrices import equilibrated_cholesky, factor_of, inverse_of

K, D = 4, 3


def test_a_factor_is_remembered_until_the_matrix_changes():
    matrix = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    first = factor_of(matrix)
    assert factor_of(matrix) is first and FullGaussian(matrix, torch.zeros(2))._factor() is first
    matrix[0, 0] = 9.0  # in place
    torch.testing.assert_close(factor_of(matrix).scale, torch.tensor([3.0, 2.0], dtype=torch.float64))
    traced = make_fx(lambda x: factor_of(x).scale * factor_of(matrix).scale)(matrix)
    torch.testing.assert_close(traced(matrix.clone()), torch.tensor([9.0, 4.0], dtype=torch.float64))
    torch.testing.assert_close(vmap(lambda x: factor_of(x).scale)(matrix[None])[0], factor_of(matrix).scale)


def test_an_inverse_is_remembered_until_the_matrix_changes():
    matrix = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    first = inverse_of(matrix)
    assert inverse_of(matrix) is first and factor_of(matrix) is factor_of(matrix)
    matrix[1, 1] = 5.0  # in place
    torch.testing.assert_close(inverse_of(matrix).diagonal(), torch.tensor([1.0, 0.2], dtype=torch.float64))
    traced = make_fx(inverse_of)(matrix)
    torch.testing.assert_close(traced(4 * torch.eye(2, dtype=torch.float64)), 0.25 * torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("at", [(0, 0), (2, 1), (1, 2)])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, -3.0])
def test_the_quick_factor_is_the_careful_one_s_whatever_one_of_a_batch_holds(at, number):
    matrices = covariances(K, D, 5)
    quick, careful = factor_of(matrices), equilibrated_cholesky(matrices)
    assert all(torch.equal(a, b) for a, b in zip(quick, careful, strict=True))
    matrices[1][at] = number * (1.0 if at == (0, 0) else 10.0)
    quick, careful = factor_of(matrices), equilibrated_cholesky(matrices)
    assert quick.proper.tolist() == [True, False, True, True]
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(quick, careful, strict=True))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariances(num, dim, seed):
    root = draw(num, dim, dim, seed=seed)
    return root @ root.transpose(-1, -2) + 0.3 * torch.eye(dim, dtype=torch.float64)


def make(name, seed=0, num=K, dim=D):
    """A batch of proper Gaussians of one structure, with the moments it is made from."""
    mean, full = draw(num, dim, seed=seed), covariances(num, dim, seed + 100)
    spread = full if name == "full" else torch.diagonal(full, dim1=-2, dim2=-1)
    return STRUCTURES[name].from_moments(mean, spread), mean, spread


def oracle(gaussian):
    full = gaussian.to_full()
    return MultivariateNormal(
        torch.linalg.solve(full.precision, full.eta.unsqueeze(-1)).squeeze(-1),
        precision_matrix=full.precision,
    )


each_structure = pytest.mark.parametrize("name", STRUCTURES)


def close(actual, expected, rtol=1e-12, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@each_structure
def test_moments_round_trip(name):
    gaussian, mean, spread = make(name)
    got_mean, got_spread = gaussian.moments()
    close(got_mean, mean)
    close(got_spread, spread)
    close(gaussian.mean(), mean)
    assert gaussian.is_proper().tolist() == [True] * K
    assert gaussian.batch_shape == (K,)
    assert gaussian.dim == D


@each_structure
def test_densities_are_torchs(name):
    gaussian, _, _ = make(name)
    reference, x = oracle(gaussian), draw(5, K, D, seed=7)
    close(gaussian.log_prob(x), reference.log_prob(x), rtol=1e-10, atol=1e-10)
    constant = gaussian.log_factor(x) - reference.log_prob(x)
    close(constant, constant[:1].expand(5, K), rtol=1e-10, atol=1e-10)
    close(gaussian.log_det(), torch.logdet(gaussian.to_full().precision), rtol=1e-10, atol=1e-10)


@each_structure
def test_score_is_the_gradient(name):
    gaussian, _, _ = make(name)
    x = draw(K, D, seed=7)
    for factor in (gaussian, gaussian**-1.0):
        expected = vmap(grad(lambda g, row: g.log_factor(row), argnums=1))(factor, x)
        close(factor.score(x), expected, rtol=1e-10, atol=1e-10)


@each_structure
def test_kl_is_that_of_torch(name):
    q, p = make(name, 1)[0], make(name, 2)[0]
    close(q.kl(p), kl_divergence(oracle(q), oracle(p)), rtol=1e-10, atol=1e-10)
    close(q.kl(q), torch.zeros(K, dtype=torch.float64))
    # E_q[log p] = -KL(q || p) - H(q), and a log factor lacks its constant, whether it is proper or not.
    x = draw(K, D)
    expected = p.log_factor(x) - oracle(p).log_prob(x) - q.kl(p) - oracle(q).entropy()
    close(p.mean_log_factor(q), expected, rtol=1e-10, atol=1e-10)
    close(p.power(-2.0).mean_log_factor(q), -2.0 * expected, rtol=1e-10, atol=1e-10)


@each_structure
def test_posterior_is_the_prior_times_the_sites(name):
    prior, sites = make(name, 3, num=1)[0], make(name, 4)[0]
    flat = STRUCTURES[name].zeros((), D)
    q = prior * sites.product_over(0)
    close(q.precision, prior.precision + sites.precision.sum(0))
    cavity = q / sites
    for k in range(K):
        rest = type(prior)(sites.precision[k], sites.eta[k])
        close((cavity * rest).precision[k], q.precision[0])
        close((cavity * rest).eta[k], q.eta[0])
    close((q * flat).precision, q.precision)
    assert not bool(flat.is_proper())


@each_structure
def test_a_power_keeps_the_mean_and_divides_the_variance(name):
    gaussian, mean, spread = make(name)
    exponent = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    got_mean, got_spread = (gaussian**exponent).moments()
    close(got_mean, mean)
    close(got_spread, spread / exponent.reshape(-1, *(1,) * (spread.ndim - 1)))
    close((gaussian**0.5 * gaussian**0.5).precision, gaussian.precision)


def test_product_by_numerical_integration():
    """The trapezoidal rule over ±12 standard deviations is exact to rounding for analytic integrands."""
    x = torch.linspace(-25, 25, 20001, dtype=torch.float64).unsqueeze(-1)
    step = 50 / 20000
    first = DiagGaussian.from_moments(torch.tensor([0.7]).double(), torch.tensor([1.7]).double())
    second = DiagGaussian.from_moments(torch.tensor([-1.1]).double(), torch.tensor([0.6]).double())
    density = torch.exp(first.log_factor(x) + second.log_factor(x))
    total = density.sum() * step
    mean = (density * x[:, 0]).sum() * step / total
    variance = (density * (x[:, 0] - mean) ** 2).sum() * step / total
    close((first * second).moments()[0], mean.reshape(1))
    close((first * second).moments()[1], variance.reshape(1))


@each_structure
def test_transform_has_the_moments(name):
    """The images of ± sqrt(D) e_i have exactly the mean and covariance."""
    gaussian, mean, _ = make(name)
    directions = math.sqrt(D) * torch.eye(D, dtype=torch.float64)
    noise = torch.cat([directions, -directions]).unsqueeze(1).expand(2 * D, K, D)
    images = gaussian.transform(noise)
    close(images.mean(0), mean)
    offset = images - mean
    covariance = torch.einsum("ski,skj->kij", offset, offset) / (2 * D)
    close(covariance, torch.linalg.inv(gaussian.to_full().precision), rtol=1e-10, atol=1e-10)


@each_structure
def test_the_root_is_one_of_the_covariance(name):
    """Coordinates in units from 1e-6 to 1e6 cost no digits."""
    units = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    gaussian = make(name)[0]
    wide = units.unsqueeze(-1) * units if name == "full" else units.square()
    root = type(gaussian)(gaussian.precision / wide, gaussian.eta / units).root()
    root = root if name == "full" else torch.diag_embed(root)
    whitened = root.mT @ (gaussian.to_full().precision / units.unsqueeze(-1) / units) @ root
    close(whitened, torch.eye(D, dtype=torch.float64).expand(K, D, D), rtol=0, atol=1e-11)
    assert (gaussian**-1.0).root().isnan().all()


@each_structure
def test_samples_are_reproducible_and_of_the_fields_dtype(name):
    gaussian, _, _ = make(name)
    draws = gaussian.sample(6, torch.Generator().manual_seed(3))
    again = gaussian.to(torch.float32).sample(6, torch.Generator().manual_seed(3))
    assert draws.shape == (6, K, D)
    assert again.dtype == torch.float32
    torch.testing.assert_close(draws.float(), again, rtol=1e-4, atol=1e-4)


def test_the_projection_keeps_the_moments():
    gaussian, mean, covariance = make("full")
    variances = torch.diagonal(covariance, dim1=-2, dim2=-1)
    projected = gaussian.to_diag()
    close(projected.moments()[0], mean)
    close(projected.moments()[1], variances)
    for factor in (0.95, 1.05):
        worse = DiagGaussian.from_moments(mean, variances * factor)
        assert (gaussian.kl(worse.to_full()) > gaussian.kl(projected.to_full())).all()


@each_structure
def test_embeddings_are_exact_for_improper_factors_too(name):
    gaussian = make(name)[0] ** -1.0
    x = draw(K, D, seed=9)
    close(gaussian.to_full().log_factor(x), gaussian.log_factor(x))
    assert isinstance(make(name)[0].to_full().to_diag(), DiagGaussian)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terrible_scaling_costs_no_digits(dtype):
    """Coordinates in units from 1e-6 to 1e6: whitened results equal those of the well-scaled problem."""
    gaussian, mean, covariance = make("full")
    units = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    scaled = FullGaussian(gaussian.precision / units.unsqueeze(-1) / units, gaussian.eta / units).to(dtype)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-4
    assert scaled.is_proper().all()
    got_mean, got_covariance = (moment.double() for moment in scaled.moments())
    close(got_mean / units, mean, rtol=tolerance, atol=tolerance)
    close(got_covariance / units.unsqueeze(-1) / units, covariance, rtol=tolerance, atol=tolerance)
    other = make("full", 5)[0]
    rescaled = FullGaussian(other.precision / units.unsqueeze(-1) / units, other.eta / units).to(dtype)
    close(scaled.kl(rescaled).double(), gaussian.kl(other), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", STRUCTURES)
def test_improper_ones_are_flagged_and_never_repaired(name):
    gaussian, _, _ = make(name)
    sign = torch.tensor([1.0, -1.0, math.nan, 1.0], dtype=torch.float64)
    mixed = gaussian**sign
    assert mixed.is_proper().tolist() == [True, False, False, True]
    for value in (mixed.mean().sum(-1), mixed.log_det(), mixed.kl(gaussian)):
        assert value.isnan().tolist() == [False, True, True, False]
    with pytest.raises(ImproperGaussianError, match=r"cavity: .* received 2 of 4 .*\(1,\), \(2,\)"):
        mixed.require_proper("cavity")
    assert gaussian.require_proper("q") is gaussian


def test_indefinite_with_a_positive_diagonal_is_improper():
    precision = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert not bool(FullGaussian(precision, torch.zeros(2)).is_proper())
    with pytest.raises(ImproperGaussianError, match="itself"):
        FullGaussian(precision, torch.zeros(2)).require_proper("client 3, round 2: cavity")
    assert FullGaussian.from_moments(torch.zeros(2), precision).precision.isnan().all()


def test_log_prob_many_standard_deviations_from_the_origin():
    """m / sd = 1e8: the expanded form -x'Px/2 + eta'x - A would have no digit left."""
    gaussian = DiagGaussian.from_moments(torch.tensor([1e8]).double(), torch.ones(1).double())
    close(
        gaussian.log_prob(gaussian.mean() + 1.0),
        torch.tensor(-0.5 - 0.5 * math.log(2 * math.pi), dtype=torch.float64),
    )


@each_structure
def test_vmap_and_make_fx_agree_with_the_batch(name):
    q, p = make(name, 1)[0], make(name, 2)[0]
    x = draw(K, D, seed=3)

    def work(q, p, x):
        both = q * p
        return both.kl(q), both.log_factor(x), both.is_proper(), both.moments(), (q / p).score(x)

    def on_tensors(precision, eta):
        return vmap(work)(type(q)(precision, eta), p, x)

    expected = work(q, p, x)
    traced = make_fx(on_tensors)(2 * q.precision, q.eta + 1)
    for got in (vmap(work)(q, p, x), traced(q.precision, q.eta)):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_structures_do_not_mix():
    with pytest.raises(TypeError, match="expected FullGaussian of dimension 3, received DiagGaussian"):
        make("full")[0].product(make("diag")[0])
    with pytest.raises(ValueError, match=r"expected second moments of shape \(4, 3, 3\)"):
        FullGaussian.from_moments(draw(K, D), draw(K, D))
    with pytest.raises(ValueError, match="expected an axis of the batch"):
        make("diag")[0].product_over(-1)
    with pytest.raises(TypeError, match="of dimension 1"):
        make("diag")[0].quotient(DiagGaussian.zeros((K,), 1))
