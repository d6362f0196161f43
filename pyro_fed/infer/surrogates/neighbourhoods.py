"""A density around points that represent a posterior: proposals for importance weights, of any shape and many modes.

    q(θ) = (1 - w) 1/N Σ_i t_ν(θ; θ_i, S_i) + w t_ν(θ; m, 2 S),    S_i = 1/k Σ_j∈N(i) (θ_j - θ_i)(θ_j - θ_i)'

with Student's t of ν degrees of freedom (`ops.student`), N(i) the k nearest points to θ_i, less those that are
more than `FARTHEST_NEIGHBOUR` times as far as the median of them (a mode with fewer points than k has neighbours in
another one), m and S the mean and covariance of all of them. A neighbourhood's own covariance follows bent, narrow and
separate parts; the heavy tails, and the wide component, bound the weights beyond the points. Distances are in SDs of
all points. S_i includes a share of a spherical covariance, so that q is a density even if points lie on a line.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.ops.student import Mixture

#: w, and the wide component's covariance in units of that of all points.
WIDE_SHARE, WIDTH = 0.1, 2.0
#: k: this many for each dimension, and the smallest k.
NEIGHBOURS_A_DIMENSION, FEWEST_NEIGHBOURS = 3, 10
#: Largest distance of a neighbour, in units of the median one.
FARTHEST_NEIGHBOUR = 6.0
#: Share of a spherical covariance in a neighbourhood's: of its mean variance, and of that of all points.
ROUND, LEAST_VARIANCE_SHARE = 1e-2, 1e-6


def around(points: Tensor) -> Mixture:
    """The mixture around points (N, D), float64, with counts as shares; two points differ in every coordinate."""
    points = points.double()
    count, dim = points.shape
    scale = points.std(0)
    white = (points - points.mean(0)) / scale
    nearest = min(count - 1, max(FEWEST_NEIGHBOURS, NEIGHBOURS_A_DIMENSION * dim))
    found = torch.cdist(white, white).topk(nearest + 1, largest=False)
    distance, neighbours = found.values[:, 1:], found.indices[:, 1:]
    near = (distance <= FARTHEST_NEIGHBOUR * distance.median(1, keepdim=True).values).to(white)
    away = (white[neighbours] - white.unsqueeze(1)) * near.unsqueeze(-1)
    local = away.mT @ away / near.sum(1)[:, None, None]
    spread = local.diagonal(dim1=-2, dim2=-1).mean(-1)
    eye = torch.eye(dim, dtype=torch.float64, device=points.device)
    local = local + (ROUND * spread + LEAST_VARIANCE_SHARE)[:, None, None] * eye
    wide = WIDTH * (white.T @ white / count + ROUND * eye)
    factors = torch.linalg.cholesky(torch.cat([local, wide[None]])) * scale[:, None]
    shares = torch.full((count + 1,), (1 - WIDE_SHARE) / count, dtype=torch.float64, device=points.device)
    shares[-1] = WIDE_SHARE
    return Mixture(shares, torch.cat([points, points.mean(0)[None]]), factors)
