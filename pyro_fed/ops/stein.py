"""Stein variational gradient descent and the kernelised Stein discrepancy, from particles and scores.

Source: Kassab & Simeone, *Federated generalized Bayesian learning via distributed Stein variational
gradient descent*, Eq. (8); Yang, Liu & Kassab, *Client selection for federated Bayesian learning*,
Eq. (8)-(10) and (19) for the discrepancy and the inner product; Liu, Lee & Jordan (2016) for its estimates.

    phi(x_n) = 1/N Σ_j [k(x_j, x_n) s_j + ∇_{x_j} k(x_j, x_n)]                                      (8)
    <phi_a, phi_b> = 1/N² Σ_ij u_ab(x_i, x_j),    S(q, p) = <phi, phi>
    u_ab(x, y) = a(x)'b(y) k + a(x)'∇_y k + b(y)'∇_x k + tr ∇_x ∇_y k

Letters: x ``particles`` (N, D), s (a, b) ``scores``: gradients of the target's log density at the particles
(N, D), k ``kernel``, phi ``svgd_direction``. The step size epsilon is not part of phi: see ``step_sizes``.

The particles' moments are judged by `moments_off`: weights w_n that sum to one and for which Stein's identity holds as
nearly as it can,

    min_w Σ_mn w_m w_n u(x_m, x_n) + λ |w|²,    Σ_n w_n = 1, Σ_n w_n s_n = 0, Σ_n w_n (s_ni x_ni + 1) = 0 for all i

say what the moments of the target are: exactly, for a Gaussian target, wherever the particles are, and nearly where
the particles reach the bulk of another (Liu & Lee 2017, *Black-box importance sampling*; the identities of linear and
quadratic functions are those of South et al. 2022, *Semi-exact control functionals from Sard's method*). Unlike a
discrepancy they are in units that matter, and no particle, however bad, makes them smaller.

The sum over all pairs (V-statistic) is the squared norm of phi and so never negative, with a bias of order
1/N; the sum over different pairs (U-statistic) has mean zero when the particles are drawn from the target
with a fixed kernel, and may be negative. Both are squared discrepancies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import Kernel, product
from pyro_fed.ops.kernels import MEDIAN_RBF, RBF

#: λ of the Stein weights, a share of the mean of u(x_n, x_n): the weights stay near equal where that costs little.
RIDGE = 1e-2
#: Particles a coordinate that the weights need: each takes two identities, and as many particles are to be left over.
PARTICLES_PER_COORDINATE = 4
#: Ridge under matrices that are singular only by rounding or by coinciding particles, in units of their diagonal.
SINGULAR_RIDGE = 1e-6
#: The identities hold up to a ridge of the dtype's rounding to this power. Where the target is m of its SDs away they
#: must hold to 1/m² of themselves or better for the variance that they leave to be the target's.
IDENTITIES_ROUNDING = 0.8


def svgd_direction(particles: Tensor, scores: Tensor, kernel: Kernel) -> Tensor:
    """The SVGD direction phi (N, D) at the particles, Eq. (8) without its step size; the kernel is fitted here.

    Raises:
        ValueError: if the shapes of particles and scores differ.
    """
    _check_shapes("svgd_direction", particles, scores)
    return kernel.fit(particles, scores).velocity(particles, particles, scores)


def stein_inner_product(particles: Tensor, left: Tensor, right: Tensor, kernel: Kernel) -> Tensor:
    """Inner product (0-d) of the SVGD directions of two targets in the kernel's Hilbert space (V-statistic).

    It is the rate at which a step along one direction lowers the divergence to the other target. The kernel is fitted
    here.

    Raises:
        ValueError: if the shapes of particles and scores differ.
    """
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
    """Squared KSD (V-statistic), and its expectation for as many independent draws of the target, both 0-d.

    For draws, terms of different particles have mean zero, and there remains 1/N of the mean over the diagonal. The
    kernel is fitted here.

    Raises:
        ValueError: if the shapes of particles and scores differ.
    """
    _check_shapes("ksd_and_noise", particles, scores)
    matrix = kernel.fit(particles, scores).stein_matrix(particles, scores, scores)
    return matrix.mean((-2, -1)), torch.diagonal(matrix, dim1=-2, dim2=-1).mean(-1) / particles.shape[-2]


def moments_off(particles: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """How far the particles' means and standard deviations are from the target's, by the scores at them.

    By Stein weights (see the module's header) in coordinates that whiten the particles. Where there are fewer than
    `PARTICLES_PER_COORDINATE` particles a coordinate the weights have nothing left to choose, and one step of Newton's
    method by the same identities stands for them: with C the particles' covariance, the mean goes by C E[s], and the
    variances' share that is too much is -diag(E[C s x'] + C) / diag C. NaN where a score is not finite.

    Returns:
        Two 0-d tensors: the largest error of a mean, in standard deviations (the larger of the two), and the largest
        factor, at least one, between the standard deviations.

    Raises:
        ValueError: if the shapes of particles and scores differ.
    """
    _check_shapes("moments_off", particles, scores)
    count, dim = particles.shape
    offset = particles - particles.mean(0)
    variance = offset.square().mean(0)
    if count < PARTICLES_PER_COORDINATE * dim:
        return largest_off(*linear_identities(particles, scores))
    weights = _stein_weights(offset, scores)
    moved = weights @ offset
    found = (weights @ (offset - moved).square()).clamp_min(SINGULAR_RIDGE * variance)
    factor = (0.5 * (found / variance).log().abs()).exp().amax()
    return (moved.abs() / torch.maximum(found, variance).sqrt()).amax(), factor


def linear_identities(particles: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """C E[s] / sd, zero for draws of the target, and -diag(E[C s x']) / diag C, one: (D,); both add up over factors.

    C is the particles' covariance, x their distance from its centre, sd the root of its diagonal, s the gradients
    (N, D) of a factor of the target at the particles.
    """
    offset = particles - particles.mean(0)
    variance = offset.square().mean(0)
    pull = product(product(scores, offset.mT) / len(particles), offset)  # C s
    return pull.mean(0) / variance.sqrt(), -(pull * offset).mean(0) / variance


def largest_off(mean: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The largest error of a mean and factor of a standard deviation, from the sums (D,) of `linear_identities`."""
    return mean.abs().amax(), (0.5 * share.clamp_min(SINGULAR_RIDGE).log().abs()).exp().amax()


def _stein_weights(offset: Tensor, scores: Tensor) -> Tensor:
    """The weights (N,) for particles less their mean (N, D)."""
    count, dim = offset.shape
    eye = torch.eye(dim, dtype=offset.dtype, device=offset.device)
    scale = offset.square().mean(0).sqrt()
    x = offset / scale
    lower = torch.linalg.cholesky_ex(x.mT @ x / count + SINGULAR_RIDGE * eye)[0]
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
    """Standard deviation (D,) of the particle cloud in each coordinate, with divisor N.

    The divisor is N because the cloud *is* the approximation, not a sample from it; with the linear kernel
    SVGD matches exactly this covariance.
    """
    return (particles - particles.mean(-2, keepdim=True)).square().mean(-2).sqrt()


def effective_number(particles: Tensor) -> Tensor:
    """Effective number (0-d) of particles: the participation ratio N² / Σ_ij k_ij² of their RBF Gram matrix.

    It is N if no two particles are near each other, in units of the median bandwidth; 1 if all coincide.
    """
    gram = RBF().fit(particles).gram(particles, particles)
    return len(particles) ** 2 / gram.square().sum()


def _check_shapes(where: str, particles: Tensor, scores: Tensor) -> None:
    if particles.shape != scores.shape or particles.ndim != 2:
        raise ValueError(
            f"{where}: expected particles and scores of one shape (N, D), received {tuple(particles.shape)} "
            f"and {tuple(scores.shape)}; map further dimensions with torch.func.vmap"
        )
