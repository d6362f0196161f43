"""Derivatives of rows whose predictors are linear in numbers that all rows share, w = φ(z), see `compiling.composed`.

Sums over rows are computed in w, by one matrix product at each point; derivatives of φ are computed once per point,

    E_q[∇ log p] = E[J's],     E_q[∇² log p] = E[J'H J + Σ_j s_j ∇²φ_j]

For many rows the log-likelihood is nearly a parabola in w over the range of q, although it is not one in z. Score and
curvature are computed at the mean of w and at pairs of nodes around it. If they differ by little, the parabola replaces
the rows at all z,

    s(w) ≈ E[s] - C (w - E w),     H ≈ -C,     C = E[-H]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.compiling.composed import Composed, composed_structure
from pyro_fed.density.compiling.predictors import CHECK_ROWS, Predictors
from pyro_fed.density.derivatives.nodes import PAIRS, bend_of_pairs
from pyro_fed.density.derivatives.row_sums import unwhiten_sums
from pyro_fed.density.derivatives.rowwise import each_of, whitened_of
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.ops.memory import count_in_cache

#: Relative variance of noise that makes the covariance of dependent numbers, such as a scale and its logarithm,
#: regular.
COVARIANCE_JITTER = 1e-3


@dataclass(frozen=True)
class Through:
    """φ of the model's structure at the points of a client."""

    found: Composed

    def shared(self, problem: Problem, points: Tensor) -> Tensor:
        """w (M, m); points (M, D)."""
        made: Tensor = problem.vmap(self.found.inner)(points)
        return made

    def mean_back(self, problem: Problem, points: Tensor, score: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Means over points (M, D) of score and curvature in z, by scores in w (M, m) and a parabola's curvature."""
        scores, hessians = problem.vmap(lambda z, s: self.found.back(z, s, -curvature))(points, score)
        return scores.mean(0), -hessians.mean(0)

    def back(self, problem: Problem, points: Tensor, score: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (M, D) and curvatures (M, D, D) in z at points (M, D), of those in w, (M, m) and (M, m, m)."""
        scores, hessians = problem.vmap(self.found.back)(points, score, -curvature)
        return scores, -hessians


def shares(problem: Problem) -> bool:
    """Whether the model's rows have this structure; computed once."""
    return composed_structure(problem, CHECK_ROWS) is not None


def at_each_composed(problem: Problem, points: Tensor, data: ClientData | Batch) -> Moments | None:
    """`rowwise.at_each` at points (C, M, D) of models with such a structure; None without it."""
    found = composed_structure(problem, CHECK_ROWS)
    if found is None:
        return None
    points = points.to(problem.dtype)
    through = Through(found)
    sums = each_of(problem, partial(_parts, problem), problem.mapped(through.shared, (0,))(points), data)
    if sums is None:
        return None
    return Moments(sums.value, *problem.mapped(through.back, (0, 0, 0))(points, sums.score, sums.curvature))


def means_at(problem: Problem, points: Tensor, batch: Batch) -> Moments | None:
    """Means over points (S, C, D) of C clients' log-likelihoods and derivatives; None without such a structure."""
    found = composed_structure(problem, CHECK_ROWS)
    if found is None:
        return None
    count, clients, dim = points.shape
    most = count_in_cache(clients * max(found.dim, dim) ** 2)
    together = max(s for s in range(1, count + 1) if count % s == 0 and s <= most)
    total: Moments | None = None
    for some in points.split(together):
        sums = at_each_composed(problem, some.transpose(0, 1).contiguous(), batch)
        if sums is None:
            return None
        parts = [part.sum(1) / count for part in sums]
        total = Moments(*parts) if total is None else Moments(*(a + b for a, b in zip(total, parts, strict=True)))
    return total


def means_of_parabola(problem: Problem, points: Tensor, batch: Batch, share: Tensor) -> tuple[Moments, Tensor] | None:
    """`means_at` by parabolas in w, and for which clients these are accurate; `share` (C,) is that of all rows."""
    found = composed_structure(problem, CHECK_ROWS)
    if found is None:
        return None
    through, by_client = Through(found), points.transpose(0, 1).contiguous().to(problem.dtype)
    shared = problem.mapped(through.shared, (0,))(by_client).double()
    if not bool(shared.isfinite().all()):
        return None
    mean = shared.mean(1)
    away = shared - mean.unsqueeze(1)
    covariance = away.mT @ away / len(points)
    covariance = covariance + COVARIANCE_JITTER * torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
    q = FullGaussian.from_moments(mean, covariance)
    if not bool(q.is_proper().all()):
        return None
    find, root = partial(_parts, problem), q.root()
    one, few = (whitened_of(problem, find, order, mean, root, batch) for order in (1, PAIRS))
    if one is None or few is None:
        return None
    moved, bent = ((a - b).abs().flatten(1).amax(1) for a, b in zip(one[1:], few[1:], strict=True))
    few = unwhiten_sums(few, root)
    scores = few.score.unsqueeze(1) - away @ few.curvature
    score, curvature = problem.mapped(through.mean_back, (0, 0, 0))(by_client, scores, few.curvature)
    # Where the pairs move the score by little, what a parabola misses has this size at an SD, where derivatives of φ
    # hardly vary, so that of a mean a small part of it is missed.
    return Moments(few.value, score, curvature), bend_of_pairs(moved, bent, share, NEGLIGIBLE) < 1


def _parts(problem: Problem, rows: int) -> Predictors | None:
    found = composed_structure(problem, rows)
    return None if found is None else found.parts
