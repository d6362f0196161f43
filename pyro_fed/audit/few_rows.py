"""The log density of many rows by few of them, corrected for what the few miss: chains whose cost rows do not raise.

    log p(w) = log p_0(w) + n/b Σ_{i ∈ B} log p_i(w) + c(w),      c(w) ≈ level + a'w - w'E w / 2

B are b rows, dealt at random, of the n; c is what they miss. In coordinates that whiten a result's draws, and with many
rows, c is nearly a parabola: its third derivatives are of order n^(-1/2). Its coefficients a and E are found from
differences of c's gradient over `STEP` SDs to both sides along each axis. This takes 2 D + 1 scores of all rows.

The approximation is then compared with the density of all rows, at these places and at some of the draws, moved `WIDER`
times as far out. It may differ by more than `AGREE` nats, as where single rows decide. Then four times as many rows are
taken; and all rows, if a quarter of them does not agree.

The correction holds around the draws. A search far from them (`modes`) uses the few rows without it, and goes on with
all rows from what it finds.

Source: control variates of Taylor's form, Bardenet, Doucet & Holmes (2017), *On Markov chain Monte Carlo methods for
tall data*, Section 6.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.audit.target import FewRows, Target
from pyro_fed.infer.sites.few_rows import MORE, fewest
from pyro_fed.ops.entries import evenly

#: With more parameters than this the correction would take more scores of all rows than it saves.
LARGEST_DIM = 100
#: The distance, in SDs, over which differences are taken.
STEP = 1.0
#: Draws at which densities are compared; how much farther from the mean they are moved; and by how many nats the
#: densities may differ, besides so many roundings of the log density.
PROBES, WIDER, AGREE, ROUNDING = 16, 1.5, 0.1, 4


def on_rows_alone(target: Target, generator: torch.Generator) -> Target:
    """The density by few rows, without the correction; by all rows if they are not many.

    Args:
        target: the posterior, of all rows.
        generator: deals the rows.
    """
    order = _order(target, generator)
    return target if order is None else replace(target, few=_alone(target, order[: fewest(target.problem)]))


def on_few_rows(target: Target, white: Tensor, generator: torch.Generator) -> Target:
    """The density around the draws by few rows, corrected; by all rows if they are not many, or if few do not agree.

    Args:
        target: the posterior, of all rows.
        white: the draws (S, D), whitened.
        generator: deals the rows.
    """
    order = _order(target, generator)
    if order is None or target.problem.dim > LARGEST_DIM:
        return target
    eye = STEP * torch.eye(target.problem.dim, dtype=white.dtype)
    at = torch.cat([torch.zeros_like(white[:1]), eye, -eye, WIDER * white[evenly(len(white), PROBES)]])
    value, score = target(at)
    if not bool(value.isfinite().all()):
        return target
    allowed = AGREE + ROUNDING * torch.finfo(target.problem.dtype).eps * float(value.abs().max())
    count = fewest(target.problem)
    while MORE * count <= len(order):
        found = _bent(target, _alone(target, order[:count]), at, value, score)
        if bool(((found(at)[0] - value).abs() <= allowed).all()):
            return found
        count *= MORE
    return target


def _order(target: Target, generator: torch.Generator) -> Tensor | None:
    """The rows at random; None where all are taken: they are few, have no shape of their own, or are looped over."""
    problem = target.problem
    tensors = all(isinstance(leaf, Tensor) and len(leaf) == problem.num_rows for leaf in problem.all_rows)
    if problem.looped or not tensors or problem.num_rows < MORE * fewest(target.problem):
        return None
    return torch.randperm(problem.num_rows, generator=generator)


def _alone(target: Target, which: Tensor) -> FewRows:
    """Some rows, as if they missed nothing."""
    rows = tuple(leaf[which.to(leaf.device)] for leaf in target.problem.all_rows)
    zero = target.centre.new_zeros(())
    dim = len(target.centre)
    return FewRows(rows, len(which), zero, zero.expand(dim), zero.expand(dim, dim))


def _bent(target: Target, few: FewRows, at: Tensor, value: Tensor, score: Tensor) -> Target:
    """The density by some rows, corrected to second order for what they miss.

    Args:
        target: the posterior, of all rows.
        few: some rows alone.
        at: the origin, and points to both sides of it along each axis, first (2 D + 1, D); more are not used.
        value: of all rows there.
        score: likewise.
    """
    dim = at.shape[1]
    some_value, some_score = replace(target, few=few)(at[: 2 * dim + 1])
    missed = score[: 2 * dim + 1] - some_score
    bend = (missed[dim + 1 :] - missed[1 : dim + 1]) / (2 * STEP)
    corrected = replace(few, level=value[0] - some_value[0], slope=missed[0], bend=(bend + bend.T) / 2)
    return replace(target, few=corrected)
