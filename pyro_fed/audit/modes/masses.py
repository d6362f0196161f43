"""The masses of modes by importance weights, and the draws that belong to each.

Around each mode `MASS_POINTS` points of a Student's t with the mode's curvature are drawn. A point that is nearer to
another mode counts as zero. Up to the constant of Laplace's masses,

    log M = log mean of exp f / t over these points - D/2 log 2π

with the standard error of `ops.importance.log_mean`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.audit.modes.climbs import Mode
from pyro_fed.audit.target import Target
from pyro_fed.audit.weighted_points import FEWEST_POINTS
from pyro_fed.ops.adaptive_importance import FREEDOM, NOTHING
from pyro_fed.ops.importance import log_mean

#: Points for each mode, as many as for weights of the whole posterior at least; a larger number, if a difference that
#: would matter may be chance.
MASS_POINTS, MANY_MASS_POINTS = FEWEST_POINTS, 8 * FEWEST_POINTS


def nearest(modes: list[Mode], white: Tensor) -> Tensor:
    """The number of the mode whose Gaussian has the largest density, at each of the points w (S, D): (S,)."""
    heights = [mode.height - mode.distance(white).square() / 2 for mode in modes]
    return torch.stack(heights).argmax(0)


def student_points(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Points (count, dim) of a Student's t with `FREEDOM` degrees of freedom around the origin."""
    normal = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    chi = torch.randn(count, FREEDOM, generator=generator, dtype=torch.float64).square().mean(1, keepdim=True)
    return normal / chi.sqrt()


def log_mass_by_weights(
    target: Target, modes: list[Mode], number: int, points: int, generator: torch.Generator
) -> tuple[float, float]:
    """log M of one of the known modes, by its number, by importance weights of some points, and its standard error.

    Laplace's log M with an infinite error if no point is nearest to this mode.
    """
    mode, dim = modes[number], len(modes[number].at)
    factor = torch.linalg.cholesky(mode.precision)
    white = mode.at + torch.linalg.solve_triangular(factor.T, student_points(points, dim, generator).T, upper=True).T
    half = (FREEDOM + dim) / 2
    log_t = math.lgamma(half) - math.lgamma(FREEDOM / 2) - dim / 2 * math.log(FREEDOM * math.pi)
    log_t = log_t + factor.diagonal().log().sum() - half * (mode.distance(white).square() / FREEDOM).log1p()
    log_weights = target.values(white) - log_t
    own = nearest(modes, white) == number
    if not bool((own & log_weights.isfinite()).any()):
        return mode.log_mass, math.inf
    most = float(log_weights[own].max())
    found, error = log_mean(torch.where(own, log_weights, -torch.inf).clamp_min(most - NOTHING))
    return found - dim / 2 * math.log(2 * math.pi), error
