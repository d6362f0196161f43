"""Kernels, SVGD direction and KSD against autograd, double loops, quadrature and closed forms."""

import math

import pytest
import torch
from torch.func import jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fed.ops.kernel_base import Preconditioned, median_distance
from pyro_fed.ops.kernels import IMQ, RBF, Linear
from pyro_fed.ops.stein import ksd, spread, stein_inner_product, svgd_direction

N, D = 7, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, S = draw(N, D, seed=1), draw(N, D, seed=2)
CENTRE = draw(D, seed=3)
LOWER = torch.tensor([[2.0, 0.0, 0.0], [0.5, 0.3, 0.0], [-1.0, 0.2, 5.0]], dtype=torch.float64)
SCALES = torch.tensor([0.1, 2.0, 30.0], dtype=torch.float64)


def rbf(x, y):
    return torch.exp(-(x - y).square().sum() / 1.7)


def imq(x, y):
    return (0.8**2 + (x - y).square().sum()) ** -0.3


def linear(x, y):
    return 1 + (x - CENTRE) @ (y - CENTRE) / D


# Each kernel beside its definition, a matrix-valued function of two points.
KERNELS = {
    "rbf": (RBF(1.7), lambda x, y: rbf(x, y) * torch.eye(D, dtype=x.dtype)),
    "imq": (IMQ(0.8, -0.3), lambda x, y: imq(x, y) * torch.eye(D, dtype=x.dtype)),
    "linear": (Linear(CENTRE), lambda x, y: linear(x, y) * torch.eye(D, dtype=x.dtype)),
    "sum": (RBF(1.7) + Linear(CENTRE), lambda x, y: (rbf(x, y) + linear(x, y)) * torch.eye(D, dtype=x.dtype)),
    "weighted": (
        0.3 * RBF(1.7) + Linear(CENTRE),
        lambda x, y: (0.3 * rbf(x, y) + linear(x, y)) * torch.eye(D, dtype=x.dtype),
    ),
    "dense": (
        Preconditioned(IMQ(0.8, -0.3), LOWER),
        lambda x, y: LOWER @ LOWER.T * imq(torch.linalg.solve(LOWER, x), torch.linalg.solve(LOWER, y)),
    ),
    "diagonal": (
        Preconditioned(RBF(1.7), SCALES),
        lambda x, y: torch.diag(SCALES**2) * rbf(x / SCALES, y / SCALES),
    ),
    "mixed": (
        Preconditioned(RBF(1.7), SCALES) + Linear(CENTRE),
        lambda x, y: torch.diag(SCALES**2) * rbf(x / SCALES, y / SCALES) + linear(x, y) * torch.eye(D, dtype=x.dtype),
    ),
}
each_kernel = pytest.mark.parametrize(("kernel", "definition"), KERNELS.values(), ids=KERNELS)


def naive_velocity(definition, point, particles, scores):
    """Eq. (8) by a loop, with the divergence of the kernel's rows from autograd."""
    total = torch.zeros_like(point)
    for x, s in zip(particles, scores, strict=True):
        divergence = torch.einsum("abb->a", jacrev(lambda x: definition(x, point).T)(x).transpose(0, 1))
        total = total + definition(x, point).T @ s + divergence
    return total / len(particles)


def naive_stein(definition, x, y, a, b):
    """The Stein kernel of two targets at one pair, from autograd of the definition."""
    first = jacrev(definition, 0)(x, y)  # [i, j, c] = dK_ij / dx_c
    second = jacrev(definition, 1)(x, y)
    both = jacrev(jacrev(definition, 0), 1)(x, y)
    return (
        a @ definition(x, y) @ b
        + torch.einsum("i,ijj->", a, second)
        + torch.einsum("j,iji->", b, first)
        + torch.einsum("ijij->", both)
    )


@each_kernel
def test_svgd_direction_is_equation_8(kernel, definition):
    expected = torch.stack([naive_velocity(definition, y, X, S) for y in X])
    torch.testing.assert_close(svgd_direction(X, S, kernel), expected, rtol=1e-10, atol=1e-10)


@each_kernel
def test_velocity_elsewhere_is_the_same_field(kernel, definition):
    points = draw(4, D, seed=5)
    expected = torch.stack([naive_velocity(definition, y, X, S) for y in points])
    torch.testing.assert_close(kernel.fit(X).velocity(points, X, S), expected, rtol=1e-10, atol=1e-10)


@each_kernel
def test_stein_matrix_is_its_definition(kernel, definition):
    other = draw(N, D, seed=4)
    expected = torch.stack(
        [torch.stack([naive_stein(definition, X[i], X[j], S[i], other[j]) for j in range(N)]) for i in range(N)]
    )
    torch.testing.assert_close(kernel.fit(X).stein_matrix(X, S, other), expected, rtol=1e-10, atol=1e-8)
    torch.testing.assert_close(stein_inner_product(X, S, other, kernel), expected.mean(), rtol=1e-10, atol=1e-10)


@each_kernel
def test_v_and_u_statistics_are_those_of_the_definition(kernel, definition):
    matrix = torch.stack(
        [torch.stack([naive_stein(definition, X[i], X[j], S[i], S[j]) for j in range(N)]) for i in range(N)]
    )
    u_statistic = (matrix.sum() - matrix.trace()) / (N * (N - 1))
    torch.testing.assert_close(ksd(X, S, kernel, "V"), matrix.mean(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ksd(X, S, kernel, "U"), u_statistic, rtol=1e-10, atol=1e-8)
    assert ksd(X, S, kernel, "V") >= 0


@pytest.mark.parametrize("kernel", [RBF(0.9), IMQ(1.2, -0.5), Linear(torch.tensor([0.3], dtype=torch.float64))])
def test_stein_kernel_integrates_to_zero_under_the_target(kernel):
    """E_{x ~ p} u(x, y) = 0 for every y: Stein's identity for p = N(0.4, 1.3²).

    The trapezoidal rule over ±10 standard deviations is exact to rounding for these analytic integrands.
    """
    nodes = torch.linspace(-10, 10, 401, dtype=torch.float64)
    weights = torch.exp(-0.5 * nodes.square()) * 0.05 / math.sqrt(2 * math.pi)
    x = torch.cat([0.4 + 1.3 * nodes, torch.tensor([-2.0, 0.1, 1.9], dtype=torch.float64)]).unsqueeze(-1)
    score = -(x - 0.4) / 1.69
    values = kernel.stein_matrix(x, score, score)[:401, 401:]
    assert (weights @ values.abs() > 0.1).all()
    torch.testing.assert_close(weights @ values, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-11)


def test_linear_ksd_of_gaussians_in_closed_form():
    """||P (m - mu)||² + ||I - P C||_F² / d for particles of mean m and covariance C, target N(mu, P⁻¹)."""
    mu, precision = draw(D, seed=8), LOWER @ LOWER.T
    scores = -(X - mu) @ precision
    mean, covariance = X.mean(0), torch.cov(X.T, correction=0)
    mismatch = torch.eye(D, dtype=X.dtype) - precision @ covariance
    expected = (precision @ (mean - mu)).square().sum() + mismatch.square().sum() / D
    torch.testing.assert_close(ksd(X, scores, Linear()), expected, rtol=1e-10, atol=0)


def exact_cloud(num, covariance, mean):
    """Particles with exactly this mean and covariance (divisor N)."""
    raw = draw(num, len(mean), seed=11)
    raw = raw - raw.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(raw.T, correction=0)), raw.T, upper=False)
    return mean + (torch.linalg.cholesky(covariance) @ white).T


def test_linear_kernel_rests_exactly_at_the_targets_moments():
    covariance, mean = LOWER @ LOWER.T, draw(D, seed=9)
    cloud = exact_cloud(10, covariance, mean)
    score = -torch.linalg.solve(covariance, (cloud - mean).T).T
    assert svgd_direction(cloud, score, Linear()).abs().max() < 1e-11
    assert svgd_direction(cloud, 0.9 * score, Linear()).abs().max() > 1e-2


def test_two_particles_with_the_linear_kernel_span_one_standard_deviation_each_way():
    """Two particles mu ± u rest where u is an eigenvector of Sigma of squared length its eigenvalue."""
    covariance, mean = LOWER @ LOWER.T, draw(D, seed=9)
    values, vectors = torch.linalg.eigh(covariance)
    for value, vector in zip(values, vectors.T, strict=True):
        cloud = torch.stack([mean + value.sqrt() * vector, mean - value.sqrt() * vector])
        score = -torch.linalg.solve(covariance, (cloud - mean).T).T
        assert svgd_direction(cloud, score, Linear()).abs().max() < 1e-11


def test_svgd_with_the_linear_kernel_converges_to_the_targets_moments():
    covariance = torch.tensor([[1.0, 0.4], [0.4, 0.5]], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    cloud = draw(8, 2, seed=13)
    for _ in range(3000):
        score = -torch.linalg.solve(covariance, (cloud - mean).T).T
        cloud = cloud + 0.1 * svgd_direction(cloud, score, Linear())
    torch.testing.assert_close(cloud.mean(0), mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cov(cloud.T, correction=0), covariance, rtol=0, atol=1e-10)


def test_preconditioned_svgd_is_svgd_in_whitened_coordinates():
    whitened = torch.linalg.solve(LOWER, X.T).T
    kernel = RBF() + Linear()
    expected = svgd_direction(whitened, S @ LOWER, kernel) @ LOWER.T
    torch.testing.assert_close(svgd_direction(X, S, Preconditioned(kernel, LOWER)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), Preconditioned(RBF() + Linear(), LOWER)])
def test_vmap_and_make_fx_agree_with_a_loop(kernel):
    clouds, scores = draw(4, N, D, seed=30), draw(4, N, D, seed=31)

    def both(x, s):
        return svgd_direction(x, s, kernel), ksd(x, s, kernel, "U")

    expected = [torch.stack(out) for out in zip(*map(both, clouds, scores), strict=True)]
    traced = make_fx(vmap(both))(draw(4, N, D, seed=32), scores)
    for got in (vmap(both)(clouds, scores), traced(clouds, scores)):
        torch.testing.assert_close(list(got), expected, rtol=1e-10, atol=1e-10)


def test_direction_is_the_steepest_descent_of_the_divergence():
    """-d/d eps KL along phi is E[s'phi + div phi] (Liu & Wang 2016, Theorem 3.1), the V-statistic itself."""
    kernel = RBF(1.7)
    divergence = sum(jacrev(lambda y: kernel.velocity(y[None], X, S)[0])(x).trace() for x in X) / N
    attraction = (svgd_direction(X, S, kernel) * S).sum() / N
    torch.testing.assert_close(ksd(X, S, kernel), attraction + divergence, rtol=1e-10, atol=1e-10)


def test_the_spread_of_an_exact_cloud_is_its_sds():
    covariance = LOWER @ LOWER.T
    cloud = exact_cloud(10, covariance, CENTRE)
    sd = covariance.diagonal().sqrt()
    torch.testing.assert_close(spread(cloud), sd, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RBF("mean"), "expected bandwidth 'median', 'ksd' or a number"),
        (lambda: RBF(0.0), "expected bandwidth > 0"),
        (lambda: RBF(min_bandwidth=0.0), "expected min_bandwidth > 0"),
        (lambda: IMQ(-1.0), "expected scale > 0"),
        (lambda: IMQ(1.0, 0.5), "expected exponent in"),
        (lambda: -1.0 * RBF(), "expected weight > 0"),
        (lambda: RBF().gram(X, X), "call kernel.fit"),
        (lambda: Linear().gram(X, X), "call kernel.fit"),
        (lambda: svgd_direction(X, S[:, :2], RBF()), r"received \(7, 3\) and \(7, 2\)"),
        (lambda: ksd(X, S, RBF(), "W"), "expected statistic 'U' or 'V'"),
        (lambda: ksd(X[:1], S[:1], RBF(), "U"), "needs 2 particles"),
        (lambda: median_distance(X[:1]), "at least 2 points"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
