"""Points where particles start, and the curvature that the scores at such points show."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.ops.importance import systematic
from pyro_fed.ops.points import MOST_SOBOL_DIMS, SOBOL_HALF_CELL
from pyro_fed.ops.whitening import Coordinates

#: Share of the way between two other points by which draws of a weighted sample are moved, because coinciding particles
#: would never separate.
JITTER = 0.1
#: Number of sets of draws from which one is chosen.
SETS = 200


def lowest_curvature(points: Tensor, scores: Tensor) -> float:
    """Smallest eigenvalue of H on the span of the points (N, D), from the scores -H z there; -inf if not finite."""
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

    In more dimensions than Sobol's sequence has they are pseudo-random before that.

    Fewer points than `dim` + 1 have covariance one on the space that they span, which SVGD with a linear
    kernel cannot leave; hence no antithetic pairs, which would span half of it.
    """
    if dim > MOST_SOBOL_DIMS:
        points = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    else:
        uniform = SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)
        points = torch.special.ndtri(uniform + SOBOL_HALF_CELL)
    left, _, right = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    rank = min(count - 1, dim)
    spread: Tensor = count**0.5 * left[:, :rank] @ right[:rank]
    return spread


def mixture_points(modes: Tensor, precisions: Tensor, shares: Tensor, count: int, seed: int) -> Tensor:
    """`count` points under Laplace approximations at modes (C, D), divided by the modes' shares: (count, D)."""
    edges = torch.cat([shares.new_zeros(1), shares.cumsum(0)]).mul(count).round().long()
    edges[-1] = count
    parts = []
    for mode, precision, number in zip(modes, precisions, edges.diff().tolist(), strict=True):
        if number:
            local = Coordinates.of(FullGaussian(precision, precision @ mode))._replace(mean=mode)
            parts.append(local.model(gaussian_points(number, len(mode), seed).to(mode)))
    return torch.cat(parts)


def whitened_resample(
    points: Tensor, weights: Tensor, count: int, generator: torch.Generator
) -> tuple[Coordinates, Tensor]:
    """Coordinates in which weighted points (S, D) have mean zero and covariance one, and `count` draws of them.

    A draw is moved slightly along the line between two other draws, ter Braak's (2006) jump of differential evolution.
    Of `SETS` sets of such draws, that with mean and covariance nearest to the weighted points' is taken.
    """
    mean = weights @ points
    offset = points - mean
    scale = (weights @ offset.square()).sqrt()
    x = offset / scale
    factor = scale.unsqueeze(1) * torch.linalg.cholesky(torch.einsum("s,sd,se->de", weights, x, x))
    coordinates = Coordinates(mean, factor)
    white = coordinates.white(points)
    eye = torch.eye(points.shape[1], dtype=points.dtype)
    best, least = white[:count], torch.inf
    for _ in range(SETS):
        drawn, one, other = (white[systematic(weights, count, generator)] for _ in range(3))
        drawn = drawn + JITTER * torch.randn((count, 1), generator=generator, dtype=points.dtype) * (one - other)
        away = drawn.mean(0).square().sum() + 0.5 * (drawn.T @ drawn / count - eye).square().sum()
        if float(away) < least:
            best, least = drawn, float(away)
    return coordinates, coordinates.model(best)


def equal_sites(num_clients: int, coordinates: Coordinates) -> FullGaussian:
    """An equal share of N(0, I) for each client, in whitened coordinates."""
    dim = len(coordinates.mean)
    precision = torch.eye(dim, dtype=coordinates.mean.dtype, device=coordinates.mean.device) / num_clients
    return FullGaussian(precision.expand(num_clients, -1, -1).clone(), precision.new_zeros(num_clients, dim))
