"""Whether rows' scores jump in their predictors, like those of an absolute value or of a quantile's check function.

At a jump a curvature is zero almost everywhere, and says nothing: the log-likelihood of many rows bends by the jumps of
their scores. A few rows are followed along lines u = u(0) + t A_i v, with v at random. Intervals of t are cut again
and again where the score changes most beyond what its own derivative explains,

    |g(b) - g(a) - (b - a) (h(a) + h(b)) / 2|,      g = d log p_i / dt,   h = dg/dt

until they are as short as rounding allows. If the score is smooth, nothing is left. Where a row is
`IGNORED_NATS` nats less likely than it can be, for example where probabilities are rounded to zero, jumps do not count.

Rows without linear predictors, for example of a saturating curve with Laplace errors, are followed along each
coordinate, if their operations can turn at all (`TURNING`). More functions jump there, and bend besides: a layer's
rectified units, a change point. A curvature fails only for jumps of most rows at an unchanged density: from
rising to falling, a cusp at the row's best; or as large as the score itself, as at a hinge, by `SLOPE_TURN` of it.

The prior's score is followed in the same way, as if it were a row's, and any jump counts: a lasso's at the centre of
each weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
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
from pyro_fed.density.compiling.tracing import resizing_quietly, to_graph
from pyro_fed.density.problem import Problem
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.memory import DENSITY_NUMBERS, count_in_memory

#: Of the intervals of a row so many are cut, each into so many.
NUM_CUT_INTERVALS, PIECES_PER_INTERVAL = 6, 16
#: Parameters of a prior that is looked at, one line after the other, at most.
MAX_PRIOR_DIM = 200_000
#: A score that changes over an interval as short as rounding by more than this part of what it is at most has jumped.
JUMP_SHARE = 0.05
IGNORED_NATS = 10.0
#: A score that turns over an interval as short as rounding changes by this part of what it is at a cusp, or at most
#: anywhere, or more: by 1 at a hinge, by 2 at an absolute value; and the log density by no more than this.
SLOPE_TURN, LARGEST_VALUE_CHANGE = 0.9, 1.0
#: Operations after which a score may jump.
TURNING = frozenset(
    (
        *("abs", "sgn", "sign", "relu", "leaky_relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max"),
        *("maximum", "minimum", "max", "min", "amax", "amin", "gt", "ge", "lt", "le"),
    )
)


def scores_jump(problem: Problem, parts: Predictors, z: Tensor) -> bool:
    """Whether the score of some of a few rows jumps along a line of predictors, which are linear in z."""
    rows, generator = some_rows(problem, parts.rows), torch.Generator().manual_seed(0)
    try:
        with resizing_quietly():
            two_lines = torch.randn(2, len(z), generator=generator).to(z)
            found = _largest_jumps(parts, z, rows, two_lines)
            return bool((found.jump > JUMP_SHARE * found.most).any())
    except FAILURES:
        return False


def scores_turn(problem: Problem) -> bool:
    """Whether the scores of most rows, of any structure, jump along a coordinate by as much as their size."""
    if not may_have(problem):
        return False
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    try:
        with resizing_quietly():
            if not _can_turn(rows_graph(problem, 1)):
                return False
            whole = Predictors(_whole_vector_predictors, _each_by_itself(problem), (), problem.dim, CHECK_ROWS)
            rows = some_rows(problem, CHECK_ROWS)
            for lines in torch.eye(len(z)).to(z).split(count_in_memory(_numbers_along_line(CHECK_ROWS * len(z)))):
                found = _largest_jumps(whole, z, rows, lines)
                turned = found.jump > SLOPE_TURN * torch.minimum(found.most, found.cusp)
                turned = (turned & (found.change < LARGEST_VALUE_CHANGE)).any(2)  # (lines, m)
                if bool((turned.double().mean(1) > 0.5).any()):
                    return True
    except FAILURES:
        return False
    return False


def prior_turns(problem: Problem) -> Tensor:
    """Whether the prior's score jumps along each coordinate, (D,): all of a site if one of its inspected ones does."""
    turns = torch.zeros(problem.dim, dtype=torch.bool)
    sites = [site for site in problem.layout.latents.values() if site.size]
    looked = [sorted({site.start, site.start + site.size - 1}) for site in sites]
    z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    try:
        with resizing_quietly():
            if len(z) > MAX_PRIOR_DIM:
                return turns
            graph = to_graph(lambda point: problem.log_prior(point).contiguous(), (z,))
            if not _can_turn(tidy_graph(graph)):  # without the likelihood's operations, which the model runs besides
                return turns
            whole = Predictors(
                _whole_vector_predictors, lambda u, z, *rows: vmap(problem.log_prior)(u), (), problem.dim, 1
            )
            every, jumped = torch.tensor([entry for entries in looked for entry in entries]), dict[int, bool]()
            for some in every.split(count_in_memory(_numbers_along_line(len(z)))):
                lines = torch.zeros(len(some), len(z)).scatter(1, some.unsqueeze(1), 1.0).to(z)
                found = _largest_jumps(whole, z, (z[:1],), lines)
                jumps = ((found.jump > JUMP_SHARE * found.most) & (found.change < LARGEST_VALUE_CHANGE)).any(2)[:, 0]
                jumped |= zip(some.tolist(), jumps.tolist(), strict=True)
    except FAILURES:
        return turns
    for site, entries in zip(sites, looked, strict=True):
        turns[site.start : site.start + site.size] = any(jumped[entry] for entry in entries)
    return turns


def _can_turn(graph: fx.GraphModule) -> bool:
    """Whether log densities have an operation after which scores can jump."""
    named = (getattr(getattr(node.target, "_schema", None), "name", "") for node in graph.graph.nodes)
    return any(name.removeprefix("aten::") in TURNING for name in named)


def _numbers_along_line(dim: int) -> int:
    """Numbers that densities of `dim` numbers make, at both ends of a line's intervals."""
    return DENSITY_NUMBERS * NUM_CUT_INTERVALS * PIECES_PER_INTERVAL * dim


def _whole_vector_predictors(z: Tensor, *rows: Tensor) -> Tensor:
    """All of z as the predictors of each row, (m, D)."""
    return z.expand(len(rows[0]), -1)


def _each_by_itself(problem: Problem) -> Callable[..., Tensor]:
    """Log-likelihoods (m,) of rows at a z of each row's own, (m, D)."""

    def row_log_lik(z: Tensor, *row: Tensor) -> Tensor:
        value: Tensor = problem.log_parts(z, tuple(leaf.unsqueeze(0) for leaf in row))[1].squeeze(0)
        return value

    return lambda u, z, *rows: vmap(row_log_lik)(u, *rows)


class _Intervals(NamedTuple):
    """Figures of intervals along lines, (L, m, K)."""

    jump: Tensor  # the change of the scores that second derivatives do not explain
    most: Tensor  # the largest score anywhere on the line so far, (L, m, 1)
    # the scores' size at the ends, if the density rises to the interval and falls behind it; else infinite
    cusp: Tensor
    change: Tensor  # the change of the log density


def first_intervals(like: Tensor) -> tuple[Tensor, Tensor]:
    """Beginnings and ends (K,) of a line's first intervals: 0.01 to 10,000, four a power of ten, both sides of zero."""
    ends = 10 ** torch.linspace(-2, 4, 25, dtype=torch.float64)
    places = torch.cat([-ends.flip(0), ends.new_zeros(1), ends]).to(like)
    return places[:-1], places[1:]


def unexplained(length: Tensor, change: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """By how much a function's change over intervals differs from that by its slopes at both ends."""
    return (change - length * (first + last) / 2).abs()


def are_likely(first: Tensor, last: Tensor, best: Tensor) -> Tensor:
    """Whether a log density at an end of intervals is not so far below the best that the intervals do not count."""
    return torch.maximum(first, last) >= best - IGNORED_NATS


def are_shortest(start: Tensor, end: Tensor) -> bool:
    """Whether intervals are as short as rounding allows."""
    shortest = torch.finfo(start.dtype).eps ** 0.5
    return bool((end - start <= shortest * torch.maximum(start.abs(), end.abs()).clamp_min(1.0)).all())


def pieces(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Intervals (..., K) cut: (..., K × `PIECES_PER_INTERVAL`)."""
    cut = torch.arange(PIECES_PER_INTERVAL + 1, dtype=start.dtype, device=start.device) / PIECES_PER_INTERVAL
    places = start.unsqueeze(-1) + cut * (end - start).unsqueeze(-1)
    return places[..., :-1].flatten(-2), places[..., 1:].flatten(-2)


def _largest_jumps(parts: Predictors, z: Tensor, rows: Rows, lines: Tensor) -> _Intervals:
    """The largest jumps of rows' scores, over intervals as short as rounding allows."""
    start, end = (part.expand(len(lines), parts.rows, -1) for part in first_intervals(z))
    usual = parts.linear(z, *rows)
    along = torch.stack([parts.linear(z + v, *rows) - usual for v in lines])
    line = usual, along / along.abs().amax(2, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    most = torch.zeros(len(lines), parts.rows, 1).to(z)
    while True:
        found = _unexplained_changes(parts, z, rows, line, start, end)
        most, best = torch.maximum(most, found.most), found.jump.topk(NUM_CUT_INTERVALS, 2)
        start, end = (part.gather(2, best.indices) for part in (start, end))
        if are_shortest(start, end):
            return _Intervals(best.values, most, *(part.gather(2, best.indices) for part in found[2:]))
        start, end = pieces(start, end)


def _unexplained_changes(
    parts: Predictors, z: Tensor, rows: Rows, line: tuple[Tensor, Tensor], start: Tensor, end: Tensor
) -> _Intervals:
    """Figures of intervals (L, m, K) of lines from predictors (m, p) in directions (L, m, p), for m rows."""
    usual, directions = line

    def at(t: Tensor, direction: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # a graph may write into z
        def each(u: Tensor) -> tuple[Tensor, Tensor]:
            values = parts.rest(u, z, *rows)
            return values.sum(), values

        both: Any = grad_and_value(each, has_aux=True)
        u = usual + t.unsqueeze(1) * direction
        found: Any = vjp(both, u)
        (score, (_, values)), pull = found
        none = torch.zeros_like(values)
        bend = pull((direction, (none.sum(), none)))[0]
        return values, (score * direction).sum(1), (bend * direction).sum(1)

    count = start.shape[2]
    places = torch.cat([start, end], 2).transpose(1, 2)  # (L, 2 K, m)
    each_place = directions.unsqueeze(1).expand(-1, 2 * count, -1, -1).flatten(0, 1)
    found = vmap(at)(places.flatten(0, 1), each_place, z.expand(len(each_place), -1))
    value, slope, bend = (part.reshape(places.shape).transpose(1, 2) for part in found)
    (a, b), (c, d) = slope.split(count, 2), bend.split(count, 2)
    left, size = unexplained(end - start, b - a, c, d), torch.maximum(a.abs(), b.abs())
    cusp = torch.where((a > 0) & (b < 0), size, torch.inf)
    first, last = value.split(count, 2)
    change = (last - first).abs().nan_to_num(nan=torch.inf)
    value = value.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    first, last = value.split(count, 2)
    likely = are_likely(first, last, value.amax(2, keepdim=True))
    both = torch.stack([left, size]).nan_to_num(nan=0.0, posinf=0.0)
    kept = torch.where(likely, both, 0.0)
    return _Intervals(kept[0], kept[1].amax(2, keepdim=True), cusp, change)
