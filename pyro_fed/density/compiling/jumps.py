"""Whether rows' scores jump in their predictors, as those of an absolute value or of a quantile's check function do.

There a curvature is zero almost everywhere, and says nothing: what bends the log-likelihood of many rows are the jumps
of their scores. A few rows are followed along lines u = u(0) + t A_i v, with v at random. Of intervals of t those are
cut again and again over which the score changes by most that its own derivative does not explain,

    |g(b) - g(a) - (b - a) (h(a) + h(b)) / 2|,      g = d log p_i / dt,   h = dg/dt

until they are as short as rounding lets them be. Where the score is smooth, nothing is left. Where a row is `LOW` nats
less likely than it can be, as where probabilities are rounded to zero, jumps do not count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp, vmap

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.predictors import Predictors, Rows, some_rows
from pyro_fed.density.compiling.tracing import resizing_quietly
from pyro_fed.density.problem import Problem

#: The intervals at first: ends by powers of ten, so many a power, to both sides of zero.
SMALLEST, LARGEST, A_POWER = -2, 4, 4
#: Lines that are followed, each with A_i v of size one.
LINES = 2
#: Of the intervals of a row so many are cut, each into so many.
KEPT, PIECES = 6, 16
#: A score that changes over an interval as short as rounding by more than this part of what it is at most has jumped.
JUMP = 0.05
LOW = 10.0


def scores_jump(problem: Problem, parts: Predictors, z: Tensor) -> bool:
    """Whether the score of some row jumps along a line of its predictors.

    Args:
        problem: the model's densities.
        parts: predictors of a few rows.
        z: what they are linear in, at zero or where that is made of zero.
    """
    rows, generator = some_rows(problem, parts.rows), torch.Generator().manual_seed(0)
    try:
        with resizing_quietly():
            return _jumps(parts, z, rows, torch.randn(LINES, len(z), generator=generator).to(z))
    except FAILURES:
        return False


def _jumps(parts: Predictors, z: Tensor, rows: Rows, lines: Tensor) -> bool:
    ends = 10 ** torch.linspace(SMALLEST, LARGEST, (LARGEST - SMALLEST) * A_POWER + 1, dtype=torch.float64)
    ends = torch.cat([-ends.flip(0), ends.new_zeros(1), ends]).to(z.device)
    start, end = (part.to(z).expand(len(lines), parts.rows, -1) for part in (ends[:-1], ends[1:]))
    usual = parts.linear(z, *rows)
    along = torch.stack([parts.linear(z + v, *rows) - usual for v in lines])
    line = usual, along / along.abs().amax(2, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    shortest, most = torch.finfo(z.dtype).eps ** 0.5, torch.zeros(len(lines), parts.rows, 1).to(z)
    while True:
        left, size = _unexplained(parts, z, rows, line, start, end)
        most, best = torch.maximum(most, size), left.topk(KEPT, 2)
        start, end = (part.gather(2, best.indices) for part in (start, end))
        if bool((end - start <= shortest * torch.maximum(start.abs(), end.abs()).clamp_min(1.0)).all()):
            return bool((best.values > JUMP * most).any())
        cut = torch.arange(PIECES + 1, dtype=start.dtype, device=start.device) / PIECES
        places = start.unsqueeze(-1) + cut * (end - start).unsqueeze(-1)
        start, end = places[..., :-1].flatten(2), places[..., 1:].flatten(2)


def _unexplained(
    parts: Predictors, z: Tensor, rows: Rows, line: tuple[Tensor, Tensor], start: Tensor, end: Tensor
) -> tuple[Tensor, Tensor]:
    """What second derivatives leave of the scores' changes over intervals (L, m, K), and the largest score (L, m, 1).

    Args:
        parts: predictors of m rows.
        z: as for `scores_jump`.
        rows: m of them.
        line: where predictors are at t = 0, (m, p), and the lines' directions (L, m, p).
        start: of the intervals.
        end: of the intervals.
    """
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
    left = (b - a - (end - start) * (c + d) / 2).abs()
    value = value.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    likely = torch.maximum(*value.split(count, 2)) >= value.amax(2, keepdim=True) - LOW
    both = torch.stack([left, torch.maximum(a.abs(), b.abs())]).nan_to_num(nan=0.0, posinf=0.0)
    kept = torch.where(likely, both, 0.0)
    return kept[0], kept[1].amax(2, keepdim=True)
