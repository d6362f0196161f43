"""Starts of inference: draws of the prior, or of one of Pyro's `init_to_*`, with a finite log density.

A point for gradients starts near the prior's mean, or its middle if it has none. The outputs of a network whose weights
are a draw of N(0, 1) have an SD of the root of its width: a scale or a rate that is the exponential of one is off by a
factor of a thousand, gradients by its square, and no steps recover from such a curvature.

Through many layers of such small weights no signal of the inputs passes: with eight layers of ten tanh units the
weights' gradients are 10⁻⁵ of the last shift's, which is all that steps change. There the start is the mean of fewer
draws, wider by a factor of two at a time, until no site's gradient is less than `VANISHED_GRADIENT_SHARE` of the
largest.

Images of a mode are further starts: its values in another order, and with other signs. A likelihood that does not
change if components are relabelled, or if latents change their signs, as for (x'w)², has a mode at each image of one.
If the prior distinguishes these, a mode may have a small part of the prior in its basin, which draws miss by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import FEW_ROWS, MAX_TRIES, RADIUS, ROWS_TOGETHER, SPREAD
from pyro_fed.density.checks.undefined import slopes_and_bends
from pyro_fed.density.compiling.compiler import FAILURES, failure
from pyro_fed.density.layout import Site
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.density.rows.files import picked
from pyro_fed.density.running.torch_modes import OutOfPlace
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.errors import ModelError
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.memory import count_in_memory

#: Draws of the prior whose mean is a central start: a tenth of the prior's SD from its mean, as the `init_scale` of
#: Pyro's guides.
CENTRAL_DRAWS = 100
#: Numbers of draws whose means are tried if gradients vanish through a network's layers, and the share of the largest
#: site's gradient below which they do: the smallest share is 0.05 for two layers, 2e-3 for four of ten units, 2e-5 for
#: eight.
FEWER_DRAWS, VANISHED_GRADIENT_SHARE = (25, 6, 2, 1), 3e-4
#: Draws farther from the median than this many median distances count as at that distance. Normal draws are not; the
#: mean of Cauchy draws is as wide as one of them, and weights under half-Cauchy scales began at twenty times these
#: scales: from there 200 rounds of `FedEP` reached a log density of -0.86 instead of -0.43
#: (`benchmarks.networks.kinds`, horseshoe, seed 0).
OUTLYING_DRAW_DISTANCE = 10.0


#: Up to the first number of values are put in every order, up to the second in reverse and shifted by one. More values
#: are left unchanged: they are not components but covariates or groups. Signs are changed for all latents on the real
#: line together, and for each site of as few.
EVERY_ORDER, SOME_ORDERS = 3, 8


class _Feasible(NamedTuple):
    """A distribution in place of an improper prior, which cannot be sampled, as Pyro's `init_to_*` need one."""

    value: Tensor
    support: Any

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        return self.value.expand((*sample_shape, *self.value.shape))


def draw_starts(
    problem: RowDensities,
    num_samples: int,
    generator: torch.Generator,
    strategy: Callable[..., Any] | None,
    radius: float,
    checked: bool = True,
) -> Tensor:
    """Starting points, (num_samples, D), whose log density is finite, or is not `checked`.

    `strategy` is one of Pyro's `init_to_*`; None draws from the prior, improper sites uniformly in (-radius, radius). A
    ModelError says that no such point was found in `MAX_TRIES` draws.
    """

    def unconstrained(transform: Any, value: Tensor) -> Tensor:
        z: Tensor = transform.inv(value.detach().to(problem.bound.dtype))
        return z

    def source(msg: Message, transform: Any) -> Tensor:
        if msg["name"] not in problem.layout.improper:
            value = msg["fn"].sample() if strategy is None else strategy(msg)
            return unconstrained(transform, value)
        shape = problem.sites[msg["name"]].unconstrained_shape
        if strategy is None:
            return (2 * torch.rand(shape, dtype=problem.bound.dtype) - 1) * radius
        feasible = _Feasible(transform(torch.zeros(shape, dtype=problem.bound.dtype)), msg["fn"].support)
        return unconstrained(transform, strategy(msg | {"fn": feasible}))

    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if (
            not checked
            and (found := drawn_at_once(problem, lambda _: problem.collect(source), num_samples)) is not None
        ):
            return found
        torch.default_generator.manual_seed(seed)  # the failed attempt has drawn from it
        points = torch.stack([problem.collect(source) for _ in range(num_samples)])
        if not checked or _all_finite(problem, points):
            return points
        torch.default_generator.manual_seed(seed)  # repeated draws come before the next start
        return torch.stack([_first_finite(problem, lambda: problem.collect(source)) for _ in range(num_samples)])


def central_start(problem: RowDensities, generator: torch.Generator, layered: bool = False) -> Tensor:
    """The mean of `CENTRAL_DRAWS` prior draws, (D,), of fewer through layers; one draw if not finite there."""
    left, total = CENTRAL_DRAWS, torch.zeros(())
    means: list[Tensor] = []  # of the first draws, fewer at a time
    while left:
        some = min(left, count_in_memory(problem.dim))
        drawn = _without_tails(draw_starts(problem, some, generator, None, 0.0, checked=False))
        means = means or [drawn[:count].mean(0) for count in FEWER_DRAWS]
        total = total + drawn.sum(0)
        left -= some
    central = total[None] / CENTRAL_DRAWS
    if not _all_finite(problem, central):
        return draw_starts(problem, 1, generator, None, 0.0)[0]
    return _wide_enough(problem, [central[0], *means]) if layered else central[0]


def regular_start(problem: RowDensities) -> Tensor:
    """Zeros, (D,), or another point if log density, score or curvature are not finite there or beside it."""
    # A formula such as (exp(c t) - 1) / c is NaN exactly at c = 0, and a constraint that latents share may end there.
    # If no point is inside of all edges, one on an edge is taken, else zeros: the computations there report the error.
    zeros, generator = torch.zeros(problem.dim, dtype=problem.bound.dtype), torch.Generator().manual_seed(0)
    near = SPREAD * torch.randn(problem.dim, generator=generator, dtype=zeros.dtype)
    beside = torch.stack([near, -near])
    if _is_regular(problem, zeros) and _all_finite(problem, beside):
        return zeros
    draws = draw_starts(problem, MAX_TRIES, generator, None, RADIUS, checked=False)
    found = [point for point in torch.cat([zeros[None], beside, draws]) if _is_regular(problem, point)]
    inside = (point for point in found if _all_finite(problem, point + beside))
    start: Tensor = next(inside, (found or [zeros])[0])
    return start


def _is_regular(problem: RowDensities, point: Tensor) -> bool:
    """Whether log density, score and curvature are finite, as far as torch can compute them, for rows from all over."""
    rows = _some_rows(problem)

    def density(z: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        prior, terms = problem.log_parts(z, rows)
        value = prior + terms.sum()
        return value, value

    try:
        slopes, bends, value = slopes_and_bends(density, point, point.new_zeros(0))
    except FAILURES:  # no second derivative, or none at all
        return _all_finite(problem, point[None])
    needed = (value, *slopes) if problem.bound.without_curvature else (value, *slopes, *bends)
    return all(bool(part.isfinite().all()) for part in needed)


def _without_tails(drawn: Tensor) -> Tensor:
    """Draws (S, D), moved to at most `OUTLYING_DRAW_DISTANCE` median distances from their median."""
    middle = drawn.median(0).values
    far = OUTLYING_DRAW_DISTANCE * (drawn - middle).abs().median(0).values
    return torch.where(far > 0, drawn.clamp(middle - far, middle + far), drawn)


def _wide_enough(problem: RowDensities, points: list[Tensor]) -> Tensor:
    """The first of some points at which no gradient vanishes; if there is none, that with the largest share."""
    rows = tuple(leaf[:FEW_ROWS] for leaf in problem.rows)
    found = []
    for point in points:
        score = torch.func.grad(lambda z: problem.log_parts(z, rows)[1].sum())(point)
        parts = score.detach().split([site.size for site in problem.sites.values()])
        sizes = [float(part.square().mean()) ** 0.5 for part in parts if len(part)]
        sizes = [size for size in sizes if size > 0]  # a site without rows, such as the weights of dark pixels
        share = min(sizes) / max(sizes) if sizes and math.isfinite(max(sizes)) else 0.0
        if share >= VANISHED_GRADIENT_SHARE:
            return point
        found.append(share)
    return points[found.index(max(found))]


def drawn_at_once(problem: RowDensities, draw: Callable[[Tensor], Tensor], count: int) -> Tensor | None:
    """Results of `count` runs that draw from the priors, from one mapped run; None if that is impossible."""
    found: Tensor | None = None if problem.looped else mapped_draws(draw, torch.zeros(count))
    return found


def mapped_draws(function: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Results (count, ...) of one mapped call of a function that draws; None if it cannot be mapped."""
    mapped = vmap(function, randomness="different")
    found: list[Any] = []
    with OutOfPlace():
        failed = failure(lambda: found.append(mapped(inputs)))
    return None if failed else found[0]


def feasible(problem: RowDensities, points: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """Points (S, D) of finite log density: these, or others by `draw` in place of those at which it is not finite."""
    if _all_finite(problem, points):
        return points
    return torch.stack(
        [point if _all_finite(problem, point[None]) else _first_finite(problem, draw) for point in points]
    )


def _some_rows(problem: RowDensities) -> tuple[Any, ...]:
    """The rows whose densities are checked, from all over; all if they are few."""
    count = len(problem.rows[0])
    most = FEW_ROWS if problem.local_dim else max(FEW_ROWS, min(ROWS_TOGETHER, count_in_memory(problem.dim)))
    at = evenly(count, most)
    return tuple(picked(leaf, at) for leaf in problem.rows)


def _all_finite(problem: RowDensities, points: Tensor) -> bool:
    """Whether all starts have a finite density; also False if the model cannot be mapped over them."""
    rows = _some_rows(problem)
    parts: list[Tensor] = []

    def densities() -> None:
        for some in in_chunks(points, len(rows[0])):
            parts.extend(problem.vmap(lambda z: problem.log_parts(z, rows))(some))

    if not bool(points.isfinite().all()) or failure(densities):
        return False
    return all(bool(part.isfinite().all()) for part in parts)


def _first_finite(problem: RowDensities, draw: Callable[[], Tensor]) -> Tensor:
    rows = _some_rows(problem)
    for _ in range(MAX_TRIES):
        z = draw()
        if bool(z.isfinite().all()) and all(bool(part.isfinite().all()) for part in problem.log_parts(z, rows)):
            return z
    raise ModelError(
        f"no starting point with a finite log density was found in {MAX_TRIES} draws: narrow the priors, widen the "
        "likelihood's support, or give a start, such as "
        "`init_strategy=pyro.infer.autoguide.init_to_value(values=...)`"
    )


def images_of(
    point: Tensor,
    values: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    transformed: Tensor,
    unconstrain: Callable[[Mapping[str, Tensor]], Tensor],
) -> Tensor:
    """Other points (R, D), unconstrained, that may have the likelihood of one (D,); R may be zero.

    All sites that have as many values along one of their axes are put in order together: the places, scales and
    shares of a mixture's components, or the rows and the columns of a matrix of transitions. `transformed` (D,) are
    the entries that have a transform.
    """
    found = [unconstrain(_reordered(values, sites, order)) for order in _orders(sites)]
    found += [torch.where(changed, -point, point) for changed in _signs(sites, transformed)]
    if not found:
        return point.new_zeros(0, len(point))
    every = torch.stack(found)
    usable = every.isfinite().all(1) & (every != point).any(1)
    return every[usable]


def _orders(sites: Mapping[str, Site]) -> list[tuple[int, ...]]:
    """The orders in which values are put, for each number of values that some site has along an axis."""
    orders: list[tuple[int, ...]] = []
    for size in sorted({n for site in sites.values() for n in site.shape if 1 < n <= SOME_ORDERS}):
        whole = tuple(range(size))
        if size <= EVERY_ORDER:
            orders += list(permutations(whole))[1:]
        else:
            orders += [whole[::-1], (*whole[1:], 0)]
    return orders


def _reordered(values: Mapping[str, Tensor], sites: Mapping[str, Site], order: tuple[int, ...]) -> dict[str, Tensor]:
    """Values in another order along each axis that has as many."""
    moved = {}
    for name in sites:
        value = values[name]
        for axis, size in enumerate(value.shape):
            if size == len(order):
                value = value.index_select(axis, torch.tensor(order, device=value.device))
        moved[name] = value
    return moved


def _signs(sites: Mapping[str, Site], transformed: Tensor) -> list[Tensor]:
    """Masks of entries (D,) that change their signs together: of sites on the real line alone."""
    parts = []
    for site in sites.values():
        own = torch.zeros_like(transformed)
        own[site.start : site.start + site.size] = True
        if not bool(transformed[own].any()):
            parts.append(own)
    together = [torch.stack(parts).any(0)] if parts else []
    return together + (parts if 1 < len(parts) <= EVERY_ORDER else [])
