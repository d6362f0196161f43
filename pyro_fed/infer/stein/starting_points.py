"""Points where particles start, and what the scores at such points say of a Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyro_fed.infer.sites.whitening import Coordinates
from pyro_fed.ops.gaussian_structures import FullGaussian
from pyro_fed.ops.points import SOBOL_HALF_CELL


def lowest_curvature(points: Tensor, scores: Tensor) -> float:
    """Smallest eigenvalue of H on the span of the points (N, D), from the scores -H z there; -inf where not finite."""
    left, sizes, right = torch.linalg.svd(points, full_matrices=False)
    rank = min(len(points) - 1, points.shape[1])  # the points have mean zero
    curvature = -(left.mT @ scores @ right.mT)[:rank, :rank] / sizes[:rank, None]
    if not bool(curvature.isfinite().all()):
        return -torch.inf
    return float(torch.linalg.eigvalsh(0.5 * (curvature + curvature.mT))[0])


def unit_coordinates(like: Coordinates, draws: Tensor) -> Coordinates:
    """Coordinates in which draws of the prior have SD one: means zero, no correlation, shapes as those of `like`."""
    factor = draws.std(0)
    full = like.factor.dim() > like.mean.dim()
    return Coordinates(torch.zeros_like(like.mean), torch.diag(factor) if full else factor)


def gaussian_points(count: int, dim: int, seed: int) -> Tensor:
    """`count` standard normal points (count, dim): scrambled Sobol with mean zero and covariance one.

    Fewer points than `dim` + 1 have covariance one on the space that they span, which SVGD with a linear
    kernel cannot leave; hence no antithetic pairs, which would span half of it.
    """
    uniform = SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    points = torch.special.ndtri(uniform + SOBOL_HALF_CELL)
    left, _, right = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    rank = min(count - 1, dim)
    spread: Tensor = count**0.5 * left[:, :rank] @ right[:rank]
    return spread


def mixture_points(modes: Tensor, precisions: Tensor, shares: Tensor, count: int, seed: int) -> Tensor:
    """`count` points under Laplace approximations at modes (C, D), at each its share: (count, D)."""
    edges = torch.cat([shares.new_zeros(1), shares.cumsum(0)]).mul(count).round().long()
    edges[-1] = count
    parts = []
    for mode, precision, number in zip(modes, precisions, edges.diff().tolist(), strict=True):
        if number:
            local = Coordinates.of(FullGaussian(precision, precision @ mode))._replace(mean=mode)
            parts.append(local.model(gaussian_points(number, len(mode), seed).to(mode)))
    return torch.cat(parts)
