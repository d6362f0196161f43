"""Detection of jumps in rows' scores, such as those of an absolute value or of a quantile's check function.

If scores jump, second derivatives are zero almost everywhere, and the curvature of the log-likelihood of many rows
comes from the jumps. A few rows are examined along lines u = u(0) + t A_i v with random v. Intervals of t with the
largest change of the score that its derivative does not explain,

    |g(b) - g(a) - (b - a) (h(a) + h(b)) / 2|,      g = d log p_i / dt,   h = dg/dt

are cut repeatedly until they are as short as rounding allows. For a smooth score this remainder vanishes. Jumps are
ignored where a row is `IGNORED_NATS` nats less likely than at its maximum, such as where probabilities are rounded to
zero.

Rows without linear predictors, such as a saturating curve with Laplace errors, are examined along each coordinate, if
they have an operation in `TURNING`. Other functions jump there and are also curved: rectified units of a layer, a
change point. Curvatures fail only for jumps of most rows at a continuous density: from rising to falling, at a cusp; or
of the size of the score itself, at a hinge (`SLOPE_TURN`).

The prior's score is examined in the same way, and any jump counts, such as a lasso's at the centre of each weight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import (
    CHECK_ROWS,
    Predictors,
    Rows,
    may_have,
    rows_graph,
    some_rows,
    tidy_graph,
)
from pyro_fed.density.compiling.recording import Recorder, operation_of
from pyro_fed.density.compiling.tracing import resizing_quietly
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import numbers_of_row
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.memory import DENSITY_NUMBERS, count_in_memory

#: Number of intervals of a row that are cut, and number of pieces of each.
NUM_CUT_INTERVALS, PIECES_PER_INTERVAL = 6, 16
#: Largest number of parameters of a prior that is examined.
MAX_PRIOR_DIM = 200_000
#: Change of a score over a shortest interval, relative to the largest score, above which the score jumps.
JUMP_SHARE = 0.05
IGNORED_NATS = 10.0
#: Smallest relative change of a score over a shortest interval at a turn, 1 at a hinge and 2 at an absolute value; and
#: largest change of the log density there.
SLOPE_TURN, LARGEST_VALUE_CHANGE = 0.9, 1.0
#: Operations after which a score may jump.
TURNING = frozenset(
    (
        *("abs", "sgn", "sign", "relu", "leaky_relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max"),
        *("maximum", "minimum", "max", "min", "amax", "amin", "gt", "ge", "lt", "le"),
    )
)


def scores_jump(problem: Problem, parts: Predictors, z: Tensor) -> bool:
    """Whether the score of any of a few rows jumps along a line of linear predictors."""
    rows, generator = some_rows(problem, parts.rows), torch.Generator().manual_seed(0)
    try:
        with resizing_quietly():
            two_lines = torch.randn(2, len(z), generator=generator).to(z)
            intervals = _largest_jumps(parts, z, rows, two_lines)
            return bool((intervals.jump > JUMP_SHARE * intervals.most).any())
    except FAILURES:
        return False


def scores_turn(problem: Problem) -> bool:
    """Whether the scores of most rows, of any structure, jump along a coordinate by about their size."""
    if not may_have(problem):
        return False
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    try:
        with resizing_quietly():
            if not _can_turn(rows_graph(problem, 1)):
                return False
            full_predictors = Predictors(
                _whole_vector_predictors, _each_by_itself(problem), (), problem.dim, CHECK_ROWS
            )
            rows = some_rows(problem, CHECK_ROWS)
            # A row may be a long series, and each has its own covariance here, since each is at its own place. The time
            # limit is looked at between runs of the model.
            numbers = CHECK_ROWS * max(DENSITY_NUMBERS * len(z), numbers_of_row(problem))
            for lines in torch.eye(len(z)).to(z).split(count_in_memory(_numbers_along_line(CHECK_ROWS * len(z)))):
                intervals = _largest_jumps(full_predictors, z, rows, lines, 2 * count_in_memory(numbers))
                is_turn = intervals.jump > SLOPE_TURN * torch.minimum(intervals.most, intervals.cusp)
                is_turn = (is_turn & (intervals.change < LARGEST_VALUE_CHANGE)).any(2)  # (lines, m)
                if bool((is_turn.double().mean(1) > 0.5).any()):
                    return True
    except FAILURES:
        return False
    return False


def prior_turns(problem: Problem) -> Tensor:
    """Whether the prior's score jumps along each coordinate, (D,), from the first and last coordinate of each site."""
    turns = torch.zeros(problem.dim, dtype=torch.bool)
    sites = [site for site in problem.layout.latents.values() if site.size]
    inspected = [sorted({site.start, site.start + site.size - 1}) for site in sites]
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    try:
        with resizing_quietly():
            if len(z) > MAX_PRIOR_DIM:
                return turns
            graph = tidy_graph(lambda point: problem.log_prior(point).contiguous(), (z,))
            if not _can_turn(graph):  # without the operations of the likelihood
                return turns
            full_predictors = Predictors(
                _whole_vector_predictors, lambda u, z, *rows: vmap(problem.log_prior)(u), (), problem.dim, 1
            )
            entries_inspected, jump_by_entry = (
                torch.tensor([entry for entries in inspected for entry in entries]),
                dict[int, bool](),
            )
            for chunk in entries_inspected.split(count_in_memory(_numbers_along_line(len(z)))):
                lines = torch.zeros(len(chunk), len(z)).scatter(1, chunk.unsqueeze(1), 1.0).to(z)
                intervals = _largest_jumps(full_predictors, z, (z[:1],), lines)
                jumps = (
                    (intervals.jump > JUMP_SHARE * intervals.most) & (intervals.change < LARGEST_VALUE_CHANGE)
                ).any(2)[:, 0]
                jump_by_entry |= zip(chunk.tolist(), jumps.tolist(), strict=True)
    except FAILURES:
        return turns
    for site, entries in zip(sites, inspected, strict=True):
        turns[site.start : site.start + site.size] = any(jump_by_entry[entry] for entry in entries)
    return turns


def _can_turn(graph: Recorder) -> bool:
    """Whether a graph has an operation after which scores can jump."""
    return any(operation_of(node) in TURNING for node in graph.graph.nodes)


def _numbers_along_line(dim: int) -> int:
    """Numbers in the computation of densities of `dim` numbers at both ends of a line's intervals."""
    return DENSITY_NUMBERS * NUM_CUT_INTERVALS * PIECES_PER_INTERVAL * dim


def _whole_vector_predictors(z: Tensor, *rows: Tensor) -> Tensor:
    """All of z as the predictors of each row, (m, D)."""
    return z.expand(len(rows[0]), -1)


def _each_by_itself(problem: Problem) -> Callable[..., Tensor]:
    """Log-likelihoods (m,) of rows, each at its own z, (m, D)."""

    def row_log_lik(z: Tensor, *row: Tensor) -> Tensor:
        value: Tensor = problem.log_parts(z, tuple(leaf.unsqueeze(0) for leaf in row))[1].squeeze(0)
        return value

    return lambda u, z, *rows: vmap(row_log_lik)(u, *rows)


class _Intervals(NamedTuple):
    """Properties of intervals along lines, (L, m, K)."""

    jump: Tensor  # change of the scores that second derivatives do not explain
    most: Tensor  # largest score on the line so far, (L, m, 1)
    # size of the scores at the ends if the density rises before the interval and falls after it; otherwise infinite
    cusp: Tensor
    change: Tensor  # change of the log density


def first_intervals(like: Tensor) -> tuple[Tensor, Tensor]:
    """Starts and ends (K,) of a line's first intervals: 0.01 to 10,000, four per power of ten, both sides of zero."""
    ends = 10 ** torch.linspace(-2, 4, 25, dtype=torch.float64)
    places = torch.cat([-ends.flip(0), ends.new_zeros(1), ends]).to(like)
    return places[:-1], places[1:]


def unexplained(length: Tensor, change: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The change of a function over intervals that its slopes at both ends do not explain."""
    return (change - length * (first + last) / 2).abs()


def are_likely(first: Tensor, last: Tensor, best: Tensor) -> Tensor:
    """Whether the log density at an end of intervals is within `IGNORED_NATS` of the best."""
    return torch.maximum(first, last) >= best - IGNORED_NATS


def are_shortest(start: Tensor, end: Tensor) -> bool:
    """Whether intervals are as short as rounding allows."""
    shortest = torch.finfo(start.dtype).eps ** 0.5
    return bool((end - start <= shortest * torch.maximum(start.abs(), end.abs()).clamp_min(1.0)).all())


def pieces(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Intervals (..., K) cut into (..., K × `PIECES_PER_INTERVAL`)."""
    cut = torch.arange(PIECES_PER_INTERVAL + 1, dtype=start.dtype, device=start.device) / PIECES_PER_INTERVAL
    places = start.unsqueeze(-1) + cut * (end - start).unsqueeze(-1)
    return places[..., :-1].flatten(-2), places[..., 1:].flatten(-2)


def _largest_jumps(
    parts: Predictors, z: Tensor, rows: Rows, lines: Tensor, places_at_once: int = sys.maxsize
) -> _Intervals:
    """The largest jumps of rows' scores over shortest intervals; so many places are computed in a run of the model."""
    start, end = (part.expand(len(lines), parts.rows, -1) for part in first_intervals(z))
    origin = parts.linear(z, *rows)
    along = torch.stack([parts.linear(z + v, *rows) - origin for v in lines])
    line = origin, along / along.abs().amax(2, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    most = torch.zeros(len(lines), parts.rows, 1).to(z)
    while True:
        intervals = _unexplained_changes(parts, z, rows, line, (start, end), places_at_once)
        most, best = torch.maximum(most, intervals.most), intervals.jump.topk(NUM_CUT_INTERVALS, 2)
        start, end = (part.gather(2, best.indices) for part in (start, end))
        if are_shortest(start, end):
            return _Intervals(best.values, most, *(part.gather(2, best.indices) for part in intervals[2:]))
        start, end = pieces(start, end)


def _unexplained_changes(
    parts: Predictors,
    z: Tensor,
    rows: Rows,
    line: tuple[Tensor, Tensor],
    ends: tuple[Tensor, Tensor],
    places_at_once: int,
) -> _Intervals:
    """Properties of intervals (L, m, K) on lines through predictors (m, p) in directions (L, m, p), for m rows."""
    (origin, directions), (start, end) = line, ends

    def at(t: Tensor, direction: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # a graph may write into z
        def each(u: Tensor) -> tuple[Tensor, Tensor]:
            values = parts.rest(u, z, *rows)
            return values.sum(), values

        both: Any = grad_and_value(each, has_aux=True)
        u = origin + t.unsqueeze(1) * direction
        results: Any = vjp(both, u)
        (score, (_, values)), pull = results
        zeros = torch.zeros_like(values)
        bend = pull((direction, (zeros.sum(), zeros)))[0]
        return values, (score * direction).sum(1), (bend * direction).sum(1)

    count = start.shape[2]
    places = torch.cat([start, end], 2).transpose(1, 2)  # (L, 2 K, m)
    each_place = directions.unsqueeze(1).expand(-1, 2 * count, -1, -1).flatten(0, 1)
    pieces_of_places = (part.split(places_at_once) for part in (places.flatten(0, 1), each_place))
    results = [vmap(at)(t, v, z.expand(len(t), -1)) for t, v in zip(*pieces_of_places, strict=True)]
    value, slope, bend = (torch.cat(part).reshape(places.shape).transpose(1, 2) for part in zip(*results, strict=True))
    (a, b), (c, d) = slope.split(count, 2), bend.split(count, 2)
    remainder, size = unexplained(end - start, b - a, c, d), torch.maximum(a.abs(), b.abs())
    cusp = torch.where((a > 0) & (b < 0), size, torch.inf)
    first, last = value.split(count, 2)
    change = (last - first).abs().nan_to_num(nan=torch.inf)
    value = value.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    first, last = value.split(count, 2)
    likely = are_likely(first, last, value.amax(2, keepdim=True))
    both = torch.stack([remainder, size]).nan_to_num(nan=0.0, posinf=0.0)
    remainder_and_size = torch.where(likely, both, 0.0)
    return _Intervals(remainder_and_size[0], remainder_and_size[1].amax(2, keepdim=True), cusp, change)
