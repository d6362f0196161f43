"""The log density of many rows by few of them, with a quadratic correction: the chains' cost is that of few rows.

    log p(w) = log p_0(w) + n/b Σ_{i ∈ B} log p_i(w) + c(w),      c(w) ≈ level + a'w - w'E w / 2

B are b of the n rows, drawn at random; c corrects for the other rows. In coordinates that whiten a result's draws, and
with many rows, c is nearly quadratic: its third derivatives are of order n^(-1/2). Its coefficients a and E follow from
differences of its gradient over `STEP` SDs to both sides along each axis. This takes 2 D + 1 scores of all rows.

The approximation is then compared with the density of all rows, at the points of these differences and at some draws,
moved `OUTWARD_FACTOR` times as far out. If it differs by more than `NEGLIGIBLE` nats, as when single rows dominate,
four times as many rows are drawn. If a quarter of the rows does not agree, all rows are used.

The correction holds around the draws. A search far from them (`modes`) uses the few rows without it, and goes on from
its results with all rows.

The control variate is that of `density.derivatives.few_rows`, with its source; here it is one of the whole posterior.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.audit.target import FewRows, Target
from pyro_fed.conventions.limits import NEGLIGIBLE, SUM_ROUNDING_UNITS
from pyro_fed.density.derivatives.few_rows import MORE, Quadratic, first_row_count, row_numbers
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import takes_full_matrices

#: The distance, in SDs, over which differences are taken.
STEP = 1.0
#: Draws at which densities are compared; and how much farther from the mean they are moved.
PROBES, OUTWARD_FACTOR = 16, 1.5


def on_rows_alone(target: Target, generator: torch.Generator) -> Target:
    """The posterior by few rows, drawn at random, without the correction; `target` itself if it has not many rows."""
    order = _order(target, generator)
    if order is None:
        return target
    return replace(target, few=_alone(target, order[: first_row_count(target.problem.dim)]))


def on_few_rows(target: Target, white: Tensor, generator: torch.Generator) -> Target:
    """The posterior around whitened draws (S, D) by few rows, corrected.

    `target` itself if it has not many rows, or if few rows disagree with all.
    """
    order = _order(target, generator)
    if order is None or not takes_full_matrices(target.problem.traits):
        return target
    eye = STEP * torch.eye(target.problem.dim, dtype=white.dtype)
    at = torch.cat([torch.zeros_like(white[:1]), eye, -eye, OUTWARD_FACTOR * white[evenly(len(white), PROBES)]])
    value, score = target(at)
    if not bool(value.isfinite().all()):
        return target
    allowed = NEGLIGIBLE + SUM_ROUNDING_UNITS * torch.finfo(target.problem.dtype).eps * float(value.abs().max())
    for count in row_numbers(target.problem.dim, len(order)):
        found = _corrected_target(target, _alone(target, order[:count]), at, value, score)
        if bool(((found(at)[0] - value).abs() <= allowed).all()):
            return found
    return target


def _order(target: Target, generator: torch.Generator) -> Tensor | None:
    """A random order of the rows; None if all are used: they are few or not tensors by row, or the model is looped."""
    problem = target.problem
    tensors = all(isinstance(leaf, Tensor) and len(leaf) == problem.num_rows for leaf in problem.all_rows)
    if problem.looped or not tensors or problem.num_rows < MORE * first_row_count(target.problem.dim):
        return None
    return torch.randperm(problem.num_rows, generator=generator)


def _alone(target: Target, which: Tensor) -> FewRows:
    """Some rows, by their indices, with a correction of zero."""
    rows = tuple(leaf[which.to(leaf.device)] for leaf in target.problem.all_rows)
    zero = target.centre.new_zeros(())
    dim = len(target.centre)
    return FewRows(rows, len(which), Quadratic(zero, zero.expand(dim), zero.expand(dim, dim)))


def _corrected_target(target: Target, few: FewRows, at: Tensor, value: Tensor, score: Tensor) -> Target:
    """The posterior by some rows, with the correction that fits all rows' values and scores at points.

    Only the first 2 D + 1 points are used: the origin and those to both sides of it along each axis.
    """
    dim = at.shape[1]
    some_value, some_score = replace(target, few=few)(at[: 2 * dim + 1])
    missed = score[: 2 * dim + 1] - some_score
    bend = (missed[dim + 1 :] - missed[1 : dim + 1]) / (2 * STEP)
    correction = Quadratic(value[0] - some_value[0], missed[0], (bend + bend.T) / 2)
    return replace(target, few=replace(few, correction=correction))
