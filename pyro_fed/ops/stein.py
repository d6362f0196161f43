"""Stein variational gradient descent, the kernelised Stein discrepancy, and scores of kernel density estimates.

Source: Kassab & Simeone, *Federated generalized Bayesian learning via distributed Stein variational
gradient descent*, Eq. (8); Yang, Liu & Kassab, *Client selection for federated Bayesian learning*,
Eq. (8)-(10) and (19) for the discrepancy and the inner product; Liu, Lee & Jordan (2016) for its estimates.

    phi(x_n) = 1/N Σ_j [k(x_j, x_n) s_j + ∇_{x_j} k(x_j, x_n)]                                      (8)
    <phi_a, phi_b> = 1/N² Σ_ij u_ab(x_i, x_j),    S(q, p) = <phi, phi>
    u_ab(x, y) = a(x)'b(y) k + a(x)'∇_y k + b(y)'∇_x k + tr ∇_x ∇_y k

Letters: x ``particles`` (N, D), s (a, b) ``scores``: gradients of the target's log density at the particles
(N, D), k ``kernel``, phi ``svgd_direction``. The step size epsilon is not part of phi: see ``step_sizes``.

`moments_off` judges the particles' moments by weights w_n for which Stein's identity holds as closely as possible,

    min_w Σ_mn w_m w_n u(x_m, x_n) + λ |w|²,    Σ_n w_n = 1, Σ_n w_n s_n = 0, Σ_n w_n (s_ni x_ni + 1) = 0 for all i

The weighted moments are those of the target: exactly for a Gaussian target, wherever the particles are, and
approximately for another target if the particles reach its bulk (Liu & Lee 2017, *Black-box importance sampling*; the
identities of linear and quadratic functions are those of South et al. 2022, *Semi-exact control functionals from Sard's
method*). Unlike a discrepancy the errors are in interpretable units, and no bad particle makes them smaller.

The sum over all pairs (V-statistic) is the squared norm of phi and so never negative, with a bias of order
1/N; the sum over different pairs (U-statistic) has mean zero when the particles are drawn from the target
with a fixed kernel, and may be negative. Both are squared discrepancies.

*DSVGD's sites* are ratios of Gaussian kernel density estimates, whose scores are computed in log space (Kassab &
Simeone, Section 7, Eq. (10), (14)-(15) and Appendix A.2):

    q(theta) = 1/N Σ_n N(theta | theta_n, lambda² I)                                        (Algorithm 1)
    ∇ log q(theta) = Σ_n w_n (theta_n - theta) / lambda²,   w = softmax_n(-||theta - theta_n||² / 2 lambda²)
    ∇ log t(theta) = Σ_j [∇ log q_j(theta) - ∇ log q_{j-1}(theta)]                                   (10), (15)

Letters: theta ``x`` (M, D), theta_n ``centres`` (N, D), lambda ``bandwidth`` (a standard deviation), w
``kde_weights``, j the rounds in a client's buffer. The authors' code adds 1e-9 to every kernel value (``floor``) and
1e-50 to their sum, so that q has an infinite flat tail and a score of zero away from its centres. Without a floor
log-sum-exp stays finite in any dimension, and away from the centres the score points to the nearest one, as Eq. (14)
says. ``effective_neighbours`` is the number of centres that contribute to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import Kernel, product, squared_distances, weighted_differences
from pyro_fed.ops.kernels import MEDIAN_RBF, RBF
from pyro_fed.ops.matrices import MIN_EIGENVALUE

#: λ of the Stein weights, a share of the mean of u(x_n, x_n): it keeps weights nearly equal where this costs little.
RIDGE = 1e-2
#: Particles per coordinate that the weights need: a coordinate has two identities, and as many particles remain free.
PARTICLES_PER_COORDINATE = 4
#: The identities hold up to a ridge, which is the dtype's rounding to this power. If the target is m of its SDs away,
#: they must hold to a relative error of 1/m² for the weighted variance to be the target's.
IDENTITIES_ROUNDING = 0.8


def svgd_direction(particles: Tensor, scores: Tensor, kernel: Kernel) -> Tensor:
    """The SVGD direction phi (N, D) at the particles, Eq. (8) without its step size; the kernel is fitted here."""
    _check_shapes("svgd_direction", particles, scores)
    return kernel.fit(particles, scores).velocity(particles, particles, scores)


def stein_inner_product(particles: Tensor, left: Tensor, right: Tensor, kernel: Kernel) -> Tensor:
    """Inner product (0-d) of two targets' SVGD directions (V-statistic); the kernel is fitted here."""
    _check_shapes("stein_inner_product", particles, left)
    _check_shapes("stein_inner_product", particles, right)
    return kernel.fit(particles, left).stein_matrix(particles, left, right).mean((-2, -1))


def ksd(particles: Tensor, scores: Tensor, kernel: Kernel, statistic: str = "V") -> Tensor:
    """Squared kernelised Stein discrepancy (0-d) between the particles and the target of the scores.

    The statistic is "V" (all pairs) or "U" (different pairs only, N at least 2). The kernel is fitted here.

    Raises:
        ValueError: if the shapes differ, the statistic is unknown, or "U" meets a single particle.
    """
    num_particles = particles.shape[-2]
    if statistic not in ("U", "V"):
        raise ValueError(f"ksd: expected statistic 'U' or 'V', received {statistic!r}")
    if statistic == "U" and num_particles < 2:
        raise ValueError(f"ksd: the U-statistic needs 2 particles, received {num_particles}; use 'V'")
    if statistic == "V":
        return stein_inner_product(particles, scores, scores, kernel)
    _check_shapes("ksd", particles, scores)
    matrix = kernel.fit(particles, scores).stein_matrix(particles, scores, scores)
    off_diagonal = matrix.sum((-2, -1)) - torch.diagonal(matrix, dim1=-2, dim2=-1).sum(-1)
    return off_diagonal / (num_particles * (num_particles - 1))


def ksd_and_noise(particles: Tensor, scores: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Squared KSD (V-statistic), and its expectation for as many independent draws of the target, both 0-d."""
    _check_shapes("ksd_and_noise", particles, scores)
    matrix = kernel.fit(particles, scores).stein_matrix(particles, scores, scores)
    return matrix.mean((-2, -1)), torch.diagonal(matrix, dim1=-2, dim2=-1).mean(-1) / particles.shape[-2]


def moments_off(particles: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Largest errors (0-d) of the particles' means, in SDs, and of their SDs, as a factor, from their scores."""
    # With few particles per coordinate no free weights remain. Then one Newton step by the same identities replaces
    # them: with C the particles' covariance, the mean moves by C E[s], and variances exceed the target's by the share
    # -diag(E[C s x'] + C) / diag C.
    _check_shapes("moments_off", particles, scores)
    count, dim = particles.shape
    offset = particles - particles.mean(0)
    variance = offset.square().mean(0)
    if count < PARTICLES_PER_COORDINATE * dim:
        return largest_off(*linear_identities(particles, scores))
    weights = _stein_weights(offset, scores)
    shift = weights @ offset
    target_variance = (weights @ (offset - shift).square()).clamp_min(MIN_EIGENVALUE * variance)
    factor = (0.5 * (target_variance / variance).log().abs()).exp().amax()
    return (shift.abs() / torch.maximum(target_variance, variance).sqrt()).amax(), factor


def linear_identities(particles: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """C E[s] / sd, which is zero for draws of the target, and -diag(E[C s x']) / diag C, which is one: (D,) each.

    C is the particles' covariance, x their offsets from the mean, sd the root of C's diagonal, and s the scores (N, D)
    of a factor of the target at the particles. Both results add up over factors.
    """
    offset = particles - particles.mean(0)
    variance = offset.square().mean(0)
    pull = product(product(scores, offset.mT) / len(particles), offset)  # C s
    return pull.mean(0) / variance.sqrt(), -(pull * offset).mean(0) / variance


def largest_off(mean: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The largest error of a mean and factor of a standard deviation, from the sums (D,) of `linear_identities`."""
    return mean.abs().amax(), (0.5 * share.clamp_min(MIN_EIGENVALUE).log().abs()).exp().amax()


def _stein_weights(offset: Tensor, scores: Tensor) -> Tensor:
    """The weights (N,) for particles less their mean (N, D)."""
    count, dim = offset.shape
    eye = torch.eye(dim, dtype=offset.dtype, device=offset.device)
    scale = offset.square().mean(0).sqrt()
    x = offset / scale
    lower = torch.linalg.cholesky_ex(x.mT @ x / count + MIN_EIGENVALUE * eye)[0]
    white = torch.linalg.solve_triangular(lower, x.mT, upper=False).mT
    pulled = scores * scale @ lower
    matrix = MEDIAN_RBF.fit(white).stein_matrix(white, pulled, pulled)
    diagonal = torch.diagonal(matrix).mean()
    matrix = matrix / diagonal + RIDGE * torch.eye(count, dtype=offset.dtype, device=offset.device)
    identities = torch.cat([pulled, pulled * white + 1], 1)
    identities = identities / identities.square().mean(0).clamp_min(torch.finfo(offset.dtype).tiny).sqrt()
    basis = torch.cat([torch.ones_like(identities[:, :1]), identities], 1)
    solved = torch.cholesky_solve(basis, torch.linalg.cholesky_ex(matrix)[0])
    gram = basis.mT @ solved
    gram = gram + torch.finfo(gram.dtype).eps ** IDENTITIES_ROUNDING * torch.diag(torch.diagonal(gram))
    one = torch.zeros_like(gram[:, :1])
    one[0] = 1.0
    weights = (solved @ torch.cholesky_solve(one, torch.linalg.cholesky_ex(gram)[0]))[:, 0]
    return weights / weights.sum()


def spread(particles: Tensor) -> Tensor:
    """Standard deviation (D,) of the particles, with divisor N: they are the approximation, not a sample of it."""
    return (particles - particles.mean(-2, keepdim=True)).square().mean(-2).sqrt()


def effective_number(particles: Tensor) -> Tensor:
    """Effective number (0-d) of particles, N² / Σ_ij k_ij² of their RBF Gram matrix: 1 if all coincide."""
    gram = RBF().fit(particles).gram(particles, particles)
    return len(particles) ** 2 / gram.square().sum()


def _check_shapes(where: str, particles: Tensor, scores: Tensor) -> None:
    if particles.shape != scores.shape or particles.ndim != 2:
        raise ValueError(
            f"{where}: expected particles and scores of one shape (N, D), received {tuple(particles.shape)} "
            f"and {tuple(scores.shape)}; map further dimensions with torch.func.vmap"
        )


def _log_kernels(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    if isinstance(bandwidth, float | int) and bandwidth <= 0:
        raise ValueError(f"kde: expected bandwidth > 0 (a standard deviation), received {bandwidth}")
    return -0.5 * squared_distances(x, centres) / bandwidth**2


def kde_weights(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Responsibility of each centre for each point: (M, D), (..., N, D) -> (..., M, N), rows summing to 1."""
    log_kernels = _log_kernels(x, centres, bandwidth)
    # Not a softmax: its maximum and sum would be computed again beside those of `kde_share`.
    return (log_kernels - log_kernels.logsumexp(-1, keepdim=True)).exp()


def kde_score(x: Tensor, centres: Tensor, bandwidth: float | Tensor, floor: float = 0.0) -> Tensor:
    """Gradient (..., M, D) in x of log(floor + mean_n exp(-||x - theta_n||² / 2 lambda²)), floor 0 for a KDE."""
    weights = kde_weights(x, centres, bandwidth)
    if floor:
        weights = weights * kde_share(x, centres, bandwidth, floor).unsqueeze(-1)
    return weighted_differences(weights, x, centres) / bandwidth**2


def kde_share(x: Tensor, centres: Tensor, bandwidth: float | Tensor, floor: float) -> Tensor:
    """The share (..., M) of the KDE score that the floor leaves, KDE / (KDE + floor), between 0 (no score) and 1."""
    if floor < 0:
        raise ValueError(f"kde: expected floor >= 0, received {floor}")
    log_sum = _log_kernels(x, centres, bandwidth).logsumexp(-1, keepdim=True).squeeze(-1)
    log_mean = log_sum - math.log(centres.shape[-2])
    return torch.ones_like(log_mean) if floor == 0 else torch.sigmoid(log_mean - math.log(floor))


def effective_neighbours(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Effective number of centres (..., M) in the score at each point, 1 / Σ_n w_n²; near 1 only the nearest counts."""
    return 1.0 / kde_weights(x, centres, bandwidth).square().sum(-1)


def buffer_score_ratio(
    x: Tensor, after: Tensor, before: Tensor, mask: Tensor, bandwidth: float | Tensor, floor: float = 0.0
) -> Tensor:
    """Score (M, D) of U-DSVGD's site at x, Eq. (15): Σ_j [∇ log q_j(x) - ∇ log q_{j-1}(x)] over a client's buffer.

    `after` and `before` (J, N, D) are the particles that the client sent and received, one slot for each turn; `mask`
    (J,) marks the slots in use.
    """
    difference = kde_score(x, after, bandwidth, floor) - kde_score(x, before, bandwidth, floor)
    # Selected, not multiplied: an unused slot may hold NaN.
    return torch.where(mask[:, None, None], difference, 0.0).sum(0)


def kde_draws(centres: Tensor, num_draws: int, bandwidth: float, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the density itself, stratified: every centre has as many as the others, to within one."""
    count = len(centres)
    extra = torch.randperm(count, generator=generator)[: num_draws % count]
    chosen = torch.cat([torch.arange(count).repeat(num_draws // count), extra])
    noise = torch.randn(num_draws, centres.shape[1], generator=generator, dtype=torch.float64)
    return centres[chosen.to(centres.device)] + bandwidth * noise.to(centres)
