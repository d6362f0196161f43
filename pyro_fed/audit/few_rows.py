"""The log density of many rows by few of them, with a quadratic correction: the chains' cost is that of few rows.

    log p(w) = log p_0(w) + n/b Σ_{i ∈ B} log p_i(w) + c(w),      c(w) ≈ level + a'w - w'E w / 2

B are b of the n rows; c corrects for the other rows. In coordinates that whiten a result's draws, and with many rows, c
is nearly quadratic: its third derivatives are of order n^(-1/2). It is the control variate of
`density.derivatives.few_rows` at the draws' mean, with its source. Where rows' scores jump, a and E are means over
points at the draws' distance from their mean.

The approximation is then compared with the density of all rows at some draws, moved `OUTWARD_FACTOR` times as far out.
If it differs by more than `NEGLIGIBLE` nats, grown as terms of third order grow over that distance, as when single rows
dominate, four times as many rows are taken. If a quarter of the rows does not agree, all rows are used.

The correction holds around the draws. A search far from them (`modes`) uses the few rows without it, and goes on from
its results with all rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.audit.target import FewRows, Target
from pyro_fed.conventions.limits import NEGLIGIBLE, SUM_ROUNDING_UNITS
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.few_rows import (
    MORE,
    PROBES,
    Quadratic,
    likelihoods_at,
    pick_rows,
    row_numbers,
)
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import takes_some_rows

#: How much farther from the mean the draws at which densities are compared are moved.
OUTWARD_FACTOR = 1.5


def on_rows_alone(target: Target) -> Target:
    """The posterior by few rows, without the correction; `target` itself if it has not many rows."""
    problem = target.problem
    counts = _row_counts(problem)
    if not counts:
        return target
    zero = target.centre.new_zeros(())
    nothing = Quadratic(zero, zero.expand(problem.dim), zero.expand(problem.dim, problem.dim))
    return _by_rows(target, _picked(target, counts[0]), nothing)


def near_draws(target: Target, draws: Tensor) -> Target:
    """The target with the modes of the rows' own latents near draws (S, D)."""
    return target.with_near_modes(OUTWARD_FACTOR * target.white(draws))


def on_few_rows(target: Target, white: Tensor) -> Target:
    """The posterior around whitened draws (S, D) by few rows, corrected; `target` itself if these disagree with all."""
    problem, counts = target.problem, _row_counts(target.problem)
    if not counts or not problem.traits.few_parameters:
        return target
    at = OUTWARD_FACTOR * white[evenly(len(white), PROBES)]
    value, whole = target.values(at), _parabola(target, _all_rows(target), len(white))
    if not bool(value.isfinite().all()):
        return target
    rounding = SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * float(value.abs().max())
    allowed = NEGLIGIBLE * OUTWARD_FACTOR**3 + rounding
    for count in counts:
        rows = _picked(target, count)
        some, share = _parabola(target, rows, len(white)), target.temperature * count / problem.num_rows
        missed = Quadratic(*(a / target.temperature - b / share for a, b in zip(whole, some, strict=True)))
        found = _by_rows(target, rows, missed).with_near_modes(at)
        if bool(((found.values(at) - value).abs() <= allowed).all()):
            return found
    return target


def _row_counts(problem: Problem) -> list[int]:
    """Numbers of rows that are tried in the place of all; none if these are few or not tensors, or looped over."""
    return [*row_numbers(problem.dim, problem.num_rows, MORE)] if takes_some_rows(problem.traits) else []


def _by_rows(target: Target, rows: ClientData, missed: Quadratic) -> Target:
    """The posterior by some rows, as those of one client, and what these miss."""
    chosen = rows.row_index[0].to(rows.rows[0].device)
    few = FewRows(tuple(leaf[chosen] for leaf in rows.rows), missed)
    return replace(target, few=few, near=None)


def _all_rows(target: Target) -> ClientData:
    """All rows as those of one client."""
    count = torch.tensor([target.problem.num_rows])
    return ClientData(target.problem.all_rows, torch.arange(int(count)).unsqueeze(0), count)


def _picked(target: Target, count: int) -> ClientData:
    """So many of all rows, as those of one client."""
    return pick_rows(target.problem, _all_rows(target), count)[0]


def _parabola(target: Target, rows: ClientData, uses: int) -> Quadratic:
    """The rows' log-likelihood around the draws in whitened coordinates, to second order."""
    problem, dim = target.problem, target.problem.dim
    if not problem.traits.non_smooth_rows:
        value, score, curvature = (part[0] for part in likelihoods_at(problem, target.centre.unsqueeze(0), rows, uses))
        return Quadratic(value, target.pulled(score), target.pulled(target.pulled(curvature).mT))
    axes = dim**0.5 * torch.eye(dim, dtype=target.centre.dtype)
    points = target.model(torch.cat([axes, -axes])).unsqueeze(1)
    means = Derivatives("full", "hessian").of_likelihood(problem, points, rows.full_batch())
    value, score, curvature = (part[0] for part in means)
    bend = target.pulled(target.pulled(curvature).mT)
    return Quadratic(value + bend.trace() / 2, target.pulled(score), bend)
