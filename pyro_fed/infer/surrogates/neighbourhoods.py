"""A density around points that stand for a posterior: proposals for importance weights, of any shape and many modes.

    q(θ) = (1 - w) 1/N Σ_i t_ν(θ; θ_i, S_i) + w t_ν(θ; m, 2 S),    S_i = 1/k Σ_j∈N(i) (θ_j - θ_i)(θ_j - θ_i)'

with Student's t of ν degrees of freedom, N(i) the k nearest points to θ_i, m and S the mean and covariance of all of
them. A neighbourhood's own covariance follows bent, narrow and separate parts; the heavy tails, and the wide component,
bound the weights where the points end. Distances are in SDs of all points. Where points lie on a line S_i gets a share
of a round one, so that q is a density.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.importance import systematic

#: ν, w, and the wide component's covariance in units of that of all points.
FREEDOM, WIDE_SHARE, WIDTH = 5, 0.1, 2.0
#: k: this many a dimension, and at least so many.
NEIGHBOURS_A_DIMENSION, FEWEST_NEIGHBOURS = 3, 10
#: Share of the mean variance of a neighbourhood that every direction of it gets, and of that of all points.
ROUND, LEAST = 1e-2, 1e-6


class Neighbourhoods(NamedTuple):
    """A mixture of t-distributions, in float64.

    Args:
        centres: (M, D).
        factors: (M, D, D), lower triangular.
        shares: (M,), sum one.
    """

    centres: Tensor
    factors: Tensor
    shares: Tensor

    @classmethod
    def around(cls, points: Tensor) -> Neighbourhoods:
        """The mixture around points (N, D), at least two that differ in every coordinate."""
        points = points.double()
        count, dim = points.shape
        scale = points.std(0)
        white = (points - points.mean(0)) / scale
        nearest = min(count - 1, max(FEWEST_NEIGHBOURS, NEIGHBOURS_A_DIMENSION * dim))
        around = torch.cdist(white, white).topk(nearest + 1, largest=False).indices[:, 1:]
        away = white[around] - white.unsqueeze(1)
        local = away.mT @ away / nearest
        spread = local.diagonal(dim1=-2, dim2=-1).mean(-1)
        eye = torch.eye(dim, dtype=torch.float64, device=points.device)
        local = local + (ROUND * spread + LEAST)[:, None, None] * eye
        wide = WIDTH * (white.T @ white / count + ROUND * eye)
        factors = torch.linalg.cholesky(torch.cat([local, wide[None]])) * scale[:, None]
        shares = torch.full((count + 1,), (1 - WIDE_SHARE) / count, dtype=torch.float64, device=points.device)
        shares[-1] = WIDE_SHARE
        return cls(torch.cat([points, points.mean(0)[None]]), factors, shares)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws (count, D), each component's number of them its share, rounded up or down at random."""
        which = systematic(self.shares, count, generator)
        dim = self.centres.shape[1]
        normal = torch.randn(count, dim, 1, generator=generator, dtype=torch.float64)
        squares = torch.randn(count, FREEDOM, generator=generator, dtype=torch.float64).square().sum(1)
        steps = (self.factors[which] @ normal.to(self.centres)).squeeze(-1)
        return self.centres[which] + steps * (FREEDOM / squares).sqrt().to(self.centres)[:, None]

    def log_prob(self, points: Tensor) -> Tensor:
        """At points (S, D): (S,)."""
        dim = self.centres.shape[1]
        constant = math.lgamma((FREEDOM + dim) / 2) - math.lgamma(FREEDOM / 2) - dim / 2 * math.log(FREEDOM * math.pi)
        parts = []
        for centre, factor, share in zip(self.centres, self.factors, self.shares, strict=True):
            white = torch.linalg.solve_triangular(factor, (points - centre).mT, upper=False)
            tail = (FREEDOM + dim) / 2 * (white.square().sum(0) / FREEDOM).log1p()
            parts.append(constant + share.log() - factor.diagonal().log().sum() - tail)
        return torch.stack(parts).logsumexp(0)
