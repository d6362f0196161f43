"""Expectations of score and Hessian over clients' rows, in a few passes over pieces of rows.

`row_sums` has the mathematics, for models whose rows depend on a few numbers that are linear in z. Rows and clients are
processed in pieces, selected by number, that fit into a processor's cache.

    expected_sums      under a Gaussian q, by nodes
    at_points          the mean over given points z
    at_each            at each of some points
    shared_curvature   the curvature alone, at a share of the points, also for rows with many numbers, such as the units
                       of a network's first layer and the weights after it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.compiling.predictors import CHECK_ROWS, Predictors, predictors
from pyro_fed.density.derivatives.nodes import (
    MANY_ROWS_A_PARAMETER,
    PAIRS,
    SCARCE_ROWS_A_PARAMETER,
    bend_of_pairs,
    order_of,
    rule,
    where_settled,
)
from pyro_fed.density.derivatives.row_sums import Rowwise, unwhiten_sums
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, row_pieces
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.memory import count_in_cache

#: Rows in a piece, at least: the axis of rows is found by its length.
SMALLEST_PIECE = 8
#: Numbers a row up to which its expectation is tried by pairs of nodes alone.
MAX_PAIRED_NUMBERS = 16
#: Whether rows of several numbers are straight is asked of so many rows first: where these are so many times as bent as
#: straight rows may be, at every client, as a network's, curvatures of all of them would be in vain.
TRIED_ROWS, CLEARLY_BENT_RATIO = 4096, 3.0
#: Predictors of so many rows at a time, where there are some.
Find = Callable[[int], Predictors | None]


def expected_sums(problem: Problem, mean: Tensor, root: Tensor | None, data: ClientData | Batch) -> Moments | None:
    """Expectations under N(mean, R R'), or values at the mean, of C clients; None where a row has no such structure."""
    sample = predictors(problem, CHECK_ROWS)
    several = sample is None  # more numbers than a finer rule is for, as of a softmax: where pairs do
    if sample is None and not _may_pair(problem):
        return None
    if root is None:
        eye = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        return _of_clients(problem, 1, several, mean, eye.expand(*mean.shape, -1), data)
    few, straight = _where_straight(problem, several, mean, root, data)
    if few is not None and bool(straight.all()):
        return unwhiten_sums(few, root)
    if sample is None:
        return None
    order = order_of(problem.num_rows / problem.dim, sample.width + len(sample.direct))
    fine = _of_clients(problem, order, False, mean, root, data)
    if fine is None:
        return None
    return unwhiten_sums(fine if few is None else where_settled(straight, few, fine), root)


def _may_pair(problem: Problem) -> bool:
    """Whether rows of more numbers than a finer rule is for are many, and these not too many for pairs of nodes."""
    parts = predictors(problem, CHECK_ROWS, wide=True)
    if parts is None or parts.width + len(parts.direct) > MAX_PAIRED_NUMBERS:
        return False
    return problem.num_rows >= MANY_ROWS_A_PARAMETER * problem.dim


def may_be_straight(rows: float, numbers: int) -> bool:
    """Whether there are enough rows per parameter that `PAIRS` may suffice, at less than the finer rule's cost."""
    return rows >= MANY_ROWS_A_PARAMETER and numbers > 1  # of one number the finer rule has five nodes, this one two


def _where_straight(
    problem: Problem, several: bool, mean: Tensor, root: Tensor, data: ClientData | Batch
) -> tuple[Moments | None, Tensor]:
    """Sums of a rule that has q's moments and no more, and whose rows need none finer, (C,); None where not tried."""
    parts = predictors(problem, CHECK_ROWS, wide=several)
    none = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
    if parts is None or not may_be_straight(problem.num_rows / problem.dim, parts.width + len(parts.direct)):
        return None, none
    if not several and problem.traits.non_smooth_scores:
        return None, none
    thin = problem.num_rows // TRIED_ROWS
    if several and thin > 1 and isinstance(data, ClientData):
        few, bent = _pair_sums_and_bend(problem, several, mean, root, thin_rows(data, thin))
        if few is None or not bool((bent <= CLEARLY_BENT_RATIO).any()):  # so is NaN
            return None, none
    few, bent = _pair_sums_and_bend(problem, several, mean, root, data)
    return few, bent < 1.0  # NaN is not less


def _pair_sums_and_bend(
    problem: Problem, several: bool, mean: Tensor, root: Tensor, data: ClientData | Batch
) -> tuple[Moments | None, Tensor]:
    """Sums of that rule, and how far they are from those of the mean alone, in what rows may be that are straight."""
    one, few = (_of_clients(problem, order, several, mean, root, data) for order in (1, PAIRS))
    if one is None or few is None:
        return None, torch.full((len(mean),), torch.inf, dtype=torch.float64, device=mean.device)
    share = (_num_rows(data) / problem.num_rows).clamp_min(1 / problem.num_rows)
    bent = (one.curvature - few.curvature).abs().flatten(1).amax(1)
    return few, bend_of_pairs((one.score - few.score).abs().amax(1), bent, share)


def thin_rows(data: ClientData, times: int) -> ClientData:
    """Every `times`-th row of each client."""
    return data._replace(row_index=data.row_index[:, ::times], num_rows=-(-data.num_rows // times))


def _num_rows(data: ClientData | Batch) -> Tensor:
    """Number of rows of each client, (C,)."""
    return (data.weight > 0).sum(1) if isinstance(data, Batch) else data.num_rows


def _of_clients(
    problem: Problem, order: int, several: bool, mean: Tensor, basis: Tensor, data: ClientData | Batch
) -> Moments | None:
    """Whitened sums of C clients' rows by one rule; of rows with several numbers, by pairs of nodes or the mean."""
    clients, own = len(mean), isinstance(data, Batch)
    plan = _plan(problem, _padded_row_count(data), order, several)
    if plan is None:
        return None
    work, size, most = plan
    together = max(1, min(clients, most // size))
    together = -(-clients // -(-clients // together))
    index, weight = _pieces(data, size)
    made = []
    for first in range(0, clients, together):
        chosen = torch.arange(first, first + together) % clients  # the last ones again, to keep the shape
        rows = tuple(leaf[chosen] for leaf in data.rows) if own and together < clients else data.rows
        pieces = (index[:, chosen], weight[:, chosen])
        made.append(_sums(problem, work, rows, mean[chosen], basis[chosen], *pieces, rows_axis=0 if own else None))
    return Moments(*(torch.cat(part)[:clients] for part in zip(*made, strict=True)))


def scarce(problem: Problem) -> bool:
    """Whether there are so few rows per parameter that predictors may be wide, see `SCARCE_ROWS_A_PARAMETER`."""
    return problem.num_rows < SCARCE_ROWS_A_PARAMETER * problem.dim


def _plan(problem: Problem, longest: int, order: int, several: bool) -> tuple[Rowwise, int, int] | None:
    """What is done with pieces of how many rows, and clients × rows at once; None without linear predictors."""
    if several:
        return _plan_by(lambda size: predictors(problem, size, wide=True), problem.dim, longest, order, False)
    by_values = order != 1 and problem.traits.non_smooth_scores
    wide = order != 1 and (scarce(problem) or (by_values and problem.num_rows < MANY_ROWS_A_PARAMETER * problem.dim))
    found = _plan_by(lambda size: predictors(problem, size), problem.dim, longest, order, wide)
    return None if found is None else (replace(found[0], by_values=by_values), *found[1:])


def _plan_by(find: Find, dim: int, longest: int, order: int, wide: bool) -> tuple[Rowwise, int, int] | None:
    """A plan by the predictors, `dim` numbers, that are found for so many rows at a time."""
    sample = find(CHECK_ROWS)
    if sample is None:
        return None
    numbers = sample.width + len(sample.direct)
    count = len(rule(order, numbers, sample.width if wide else 0)[1])
    each = max(count, dim * sample.width)
    size = piece_size(longest, each)
    parts = find(size)
    return None if parts is None else (Rowwise(parts, order, wide), size, count_in_cache(each))


def whitened_of(problem: Problem, find: Find, order: int, mean: Tensor, root: Tensor, batch: Batch) -> Moments | None:
    """Whitened expectations of C clients' rows under Gaussians (C, m) of what their predictors are linear in."""
    plan = _plan_by(find, mean.shape[1], batch.weight.shape[1], order, False)
    if plan is None:
        return None
    work, size, _ = plan
    index, weight = _cut(batch.weight, size)
    return _sums(problem, work, batch.rows, mean, root, index, weight, rows_axis=0)


def at_points(problem: Problem, points: Tensor, batch: Batch, diagonal: bool = False) -> Moments | None:
    """Means over points (S, C, D) of C clients' log-likelihoods and derivatives; None without such a structure."""
    count, clients, dim = points.shape
    longest = batch.weight.shape[1]
    sample = predictors(problem, CHECK_ROWS)
    if sample is None:
        return None
    numbers = sample.width + len(sample.direct)
    size = piece_size(longest, dim * sample.width)
    parts = predictors(problem, size)
    if parts is None:
        return None
    most = count_in_cache(clients * size * numbers)
    together = max(s for s in range(1, count + 1) if count % s == 0 and s <= most)
    blocks = points.to(problem.dtype).unflatten(0, (-1, together)).transpose(1, 2)  # (B, C, s, D)
    index, weight = _cut(batch.weight, size)
    which = torch.cartesian_prod(torch.arange(len(index)), torch.arange(len(blocks))).reshape(-1, 2).T
    zero = torch.zeros(clients, dtype=torch.float64, device=points.device)
    curvature = zero.new_zeros(*points.shape[1:], *([] if diagonal else [dim]))
    carry = Moments(zero, zero.new_zeros(points.shape[1:]), curvature)
    xs = (index[which[0]], weight[which[0]].contiguous(), blocks[which[1]].contiguous())
    total, _ = problem.scan(Rowwise(parts, 0, diagonal=diagonal).add_points, carry, batch.rows, xs, which.shape[1], 0)
    return Moments(*(part / count for part in total))


def at_each(problem: Problem, points: Tensor, data: ClientData) -> Moments | None:
    """C clients' log-likelihoods and derivatives at each of points (C, M, D); None without such a structure."""
    if predictors(problem, CHECK_ROWS) is None:
        return None
    return each_of(problem, lambda size: predictors(problem, size), points, data)


def each_of(problem: Problem, find: Find, points: Tensor, data: ClientData | Batch) -> Moments | None:
    """`at_each` by the predictors that are found for so many rows at a time, in what the points (C, M, m) are of."""
    sample = find(CHECK_ROWS)
    if sample is None:
        return None
    clients, count, dim = points.shape
    size = piece_size(_padded_row_count(data), clients * count * dim * sample.width)
    parts = find(size)
    if parts is None:
        return None
    index, weight = _pieces(data, size)
    zero = torch.zeros(clients, count, dtype=torch.float64, device=points.device)
    carry = Moments(zero, zero.new_zeros(points.shape), zero.new_zeros(*points.shape, dim))
    axes = (0 if isinstance(data, Batch) else None, 0)
    const = (data.rows, points.to(problem.dtype))
    total, _ = problem.scan(Rowwise(parts, 1).add_each, carry, const, (index, weight), len(index), axes)
    return Moments(*total)


def shared_curvature(problem: Problem, cut: Tensor, batch: Batch) -> Tensor | None:
    """Sums (C, D, D) over rows of curvatures at a share of the points (B, C, s, D): of row i the share i mod B."""
    few = predictors(problem, CHECK_ROWS, wide=True)
    if few is None:
        return None
    shares, clients, count, dim = cut.shape
    longest = -(-batch.weight.shape[1] // shares)
    numbers = few.width + len(few.direct)
    times = -(-longest // piece_size(longest, max(clients * count * numbers, dim * few.width)))
    cuts = shares * times
    dealt = Batch(tuple(deal_rows(leaf, cuts) for leaf in batch.rows), deal_rows(batch.weight, cuts, 0.0))
    parts = predictors(problem, dealt.weight.shape[-1], wide=True)
    if parts is None:
        return None
    total = torch.zeros(clients, dim, dim, dtype=torch.float64, device=cut.device)
    again = cut.repeat(times, 1, 1, 1)
    found, _ = problem.scan(Rowwise(parts, 0).add_share, total, (), (again, dealt), len(again), 0)
    curvature: Tensor = found
    return curvature


def deal_rows(leaf: Tensor, shares: int, filling: float | None = None) -> Tensor:
    """(C, n, ...) → (B, C, ⌈n/B⌉, ...): row i to share i mod B; short ones get the last row again, or a number."""
    clients, count = leaf.shape[:2]
    missing = -count % shares
    last = leaf[:, -1:] if filling is None else torch.full_like(leaf[:, -1:], filling)
    whole = torch.cat([leaf, last.expand(clients, missing, *leaf.shape[2:])], 1)
    dealt: Tensor = whole.unflatten(1, (-1, shares)).movedim(2, 0)
    return dealt


def _sums(
    problem: Problem,
    work: Rowwise,
    rows: Any,
    mean: Tensor,
    root: Tensor,
    index: Tensor,
    weight: Tensor,
    rows_axis: int | None = None,
) -> Moments:
    """Over pieces (L, C, size) of rows that all clients share (None), or of each client's own (0)."""
    zero = torch.zeros(len(mean), dtype=torch.float64, device=mean.device)
    carry = Moments(zero, zero.new_zeros(mean.shape), zero.new_zeros(root.shape))
    const = (rows, mean.to(problem.dtype), root.to(problem.dtype).contiguous())
    total, _ = problem.scan(work.add, carry, const, (index, weight), len(index), (rows_axis, 0, 0))
    return Moments(*total)


def _padded_row_count(data: ClientData | Batch) -> int:
    """Rows of the clients, including padding."""
    return data.weight.shape[1] if isinstance(data, Batch) else data.row_index.shape[-1]


def _pieces(data: ClientData | Batch, size: int) -> tuple[Tensor, Tensor]:
    """The clients' row numbers (L, C, size) in pieces, and their weights."""
    return _cut(data.weight, size) if isinstance(data, Batch) else row_pieces(data, size)


def _cut(weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The clients' row numbers (L, C, size) in pieces, and their weights, of weights (C, n); padding has none."""
    clients, longest = weight.shape
    count = -(-longest // size)
    place = torch.arange(count * size, device=weight.device)
    index = place.clamp_max(longest - 1).reshape(count, 1, size).expand(-1, clients, -1)
    padded = torch.nn.functional.pad(weight, (0, count * size - longest))
    return index, padded.reshape(clients, count, size).transpose(0, 1).contiguous()


def piece_size(longest: int, numbers_each: int) -> int:
    """Rows in a piece, by the rows of the longest client and the numbers that each makes."""
    return max(SMALLEST_PIECE, min(rounded_row_count(longest), count_in_cache(numbers_each)))


def rounded_row_count(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: clients of nearly the same size share their graphs."""
    size = 1 << max(0, (count - 1).bit_length())
    return size * 3 // 4 if size >= 4 and size * 3 // 4 >= count else size
