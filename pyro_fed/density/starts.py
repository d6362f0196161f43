"""Starts of inference: draws of the prior, or of one of Pyro's `init_to_*`, with a finite log density.

Gradient methods start near the prior's mean, or near its median if it has no mean. The outputs of a network with
weights drawn from N(0, 1) have an SD of the square root of its width: the exponential of an output, such as a scale or
a rate, is wrong by a factor of a thousand, gradients by its square, and no method recovers from such a curvature.

Many layers of small weights do not transmit the inputs: with eight layers of ten tanh units the gradients of the
weights are 10⁻⁵ of the gradient of the last bias, which is the only parameter that moves. The start is then the mean of
fewer draws, each time wider by a factor of two, until no site's gradient is below `VANISHED_GRADIENT_SHARE` of the
largest.

Images of a mode are further starts: its values in another order, and with other signs. A likelihood that is invariant
under relabelling of components, or under changes of sign as in (x'w)², has a mode at each image of a mode. If the prior
is not invariant, the basin of a mode may have so small a prior probability that no draw starts in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import FEW_ROWS, MAX_TRIES, RADIUS, ROWS_TOGETHER, points_near_zero
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

#: Number of prior draws whose mean is a central start, a tenth of the prior's SD from its mean, as the `init_scale` of
#: Pyro's guides.
CENTRAL_DRAWS = 100
#: Numbers of draws whose means are tried if gradients vanish through a network's layers; and the share of the largest
#: site's gradient below which a gradient vanishes: the smallest share is 0.05 for two layers, 2e-3 for four layers of
#: ten units, and 2e-5 for eight.
FEWER_DRAWS, VANISHED_GRADIENT_SHARE = (25, 6, 2, 1), 3e-4
#: Largest distance of a draw from the median, in median distances; draws beyond are moved to this distance. Normal
#: draws are not affected. The mean of Cauchy draws is as wide as one draw: weights under half-Cauchy scales began at
#: twenty times these scales, and 200 rounds of `FedEP` reached a log density of -0.86 instead of -0.43
#: (`benchmarks.networks.kinds`, horseshoe, seed 0).
OUTLYING_DRAW_DISTANCE = 10.0


#: Largest number of values that are put in every order, and largest number that are reversed and shifted by one. More
#: values are covariates or groups, not components, and keep their order. Signs change for all latents on the real line
#: together, and for each site separately if there are at most `EVERY_ORDER` sites.
EVERY_ORDER, SOME_ORDERS = 3, 8


class _Feasible(NamedTuple):
    """A distribution in place of an improper prior, which cannot be sampled, for Pyro's `init_to_*`."""

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
    """Starting points (num_samples, D) with a finite log density if `checked`.

    `strategy` is one of Pyro's `init_to_*`; None draws from the prior, and improper sites uniformly on (-radius,
    radius). Raises ModelError if `MAX_TRIES` draws contain no such point.
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
            and (starts := drawn_at_once(problem, lambda _: problem.collect(source), num_samples)) is not None
        ):
            return starts
        torch.default_generator.manual_seed(seed)  # the failed attempt has drawn from it
        points = torch.stack([problem.collect(source) for _ in range(num_samples)])
        if not checked or _all_finite(problem, points):
            return points
        torch.default_generator.manual_seed(seed)  # each start repeats its draws before the next start
        return torch.stack([_first_finite(problem, lambda: problem.collect(source)) for _ in range(num_samples)])


def central_start(problem: RowDensities, generator: torch.Generator, layered: bool = False) -> Tensor:
    """The mean (D,) of `CENTRAL_DRAWS` prior draws, of fewer for layers; one draw if its density is not finite."""
    left, total = CENTRAL_DRAWS, torch.zeros(())
    means: list[Tensor] = []  # of the first `FEWER_DRAWS` draws
    while left:
        num_draws = min(left, count_in_memory(problem.dim))
        drawn = _without_tails(draw_starts(problem, num_draws, generator, None, 0.0, checked=False))
        means = means or [drawn[:count].mean(0) for count in FEWER_DRAWS]
        total = total + drawn.sum(0)
        left -= num_draws
    central = total[None] / CENTRAL_DRAWS
    if not _all_finite(problem, central):
        return draw_starts(problem, 1, generator, None, 0.0)[0]
    return _wide_enough(problem, [central[0], *means]) if layered else central[0]


def regular_start(problem: RowDensities) -> Tensor:
    """Zeros (D,), or another point if log density, score or curvature are not finite at zero or near it."""
    # A formula such as (exp(c t) - 1) / c is NaN at c = 0, and a joint constraint of latents may end there. If no point
    # is inside all edges, a point on an edge is returned, or zeros, whose computations report the error.
    zeros, generator = torch.zeros(problem.dim, dtype=problem.bound.dtype), torch.Generator().manual_seed(0)
    near = points_near_zero(1, problem.dim)[0].to(zeros)
    beside = torch.stack([near, -near])
    if _is_regular(problem, zeros) and _all_finite(problem, beside):
        return zeros
    draws = draw_starts(problem, MAX_TRIES, generator, None, RADIUS, checked=False)
    regular_points = (
        point for point in torch.cat([zeros[None], beside, draws]).unbind() if _is_regular(problem, point)
    )
    first: Tensor | None = None
    for point in regular_points:
        if _all_finite(problem, point + beside):
            return point
        first = point if first is None else first
    return zeros if first is None else first


def _is_regular(problem: RowDensities, point: Tensor) -> bool:
    """Whether log density, score and, if torch has it, curvature are finite on a sample of rows."""
    rows = _sample_of_rows(problem)

    def density(z: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        prior, terms = problem.log_parts(z, rows)
        value = prior + terms.sum()
        return value, value

    try:
        slopes, bends, value = slopes_and_bends(density, point, point.new_zeros(0), problem.forward_mode)
    except FAILURES:  # without a second, or even a first, derivative
        return _all_finite(problem, point[None])
    required_parts = (value, *slopes) if problem.bound.without_curvature else (value, *slopes, *bends)
    return all(bool(part.isfinite().all()) for part in required_parts)


def _without_tails(drawn: Tensor) -> Tensor:
    """Draws (S, D) clamped to `OUTLYING_DRAW_DISTANCE` median distances from their median."""
    middle = drawn.median(0).values
    far = OUTLYING_DRAW_DISTANCE * (drawn - middle).abs().median(0).values
    return torch.where(far > 0, drawn.clamp(middle - far, middle + far), drawn)


def _wide_enough(problem: RowDensities, points: list[Tensor]) -> Tensor:
    """The first point at which no gradient vanishes; otherwise the point with the largest share of the gradient."""
    rows = tuple(leaf[:FEW_ROWS] for leaf in problem.rows)
    shares = []
    for point in points:
        score = torch.func.grad(lambda z: problem.log_parts(z, rows)[1].sum())(point)
        parts = score.detach().split([site.size for site in problem.sites.values()])
        sizes = [float(part.square().mean()) ** 0.5 for part in parts if len(part)]
        sizes = [size for size in sizes if size > 0]  # zero for a site without data, such as weights of dark pixels
        share = min(sizes) / max(sizes) if sizes and math.isfinite(max(sizes)) else 0.0
        if share >= VANISHED_GRADIENT_SHARE:
            return point
        shares.append(share)
    return points[shares.index(max(shares))]


def drawn_at_once(problem: RowDensities, draw: Callable[[Tensor], Tensor], count: int) -> Tensor | None:
    """Results of `count` runs that draw from the priors, by one mapped run; None if the model cannot be mapped."""
    results: Tensor | None = None if problem.looped else mapped_draws(draw, torch.zeros(count))
    return results


def mapped_draws(function: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Results (count, ...) of one mapped call of a random function; None if it cannot be mapped."""
    mapped = vmap(function, randomness="different")
    results: list[Any] = []
    with OutOfPlace():
        error = failure(lambda: results.append(mapped(inputs)))
    return None if error else results[0]


def feasible(problem: RowDensities, points: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """Points (S, D) with finite log density; points from `draw` replace those at which it is not finite."""
    if _all_finite(problem, points):
        return points
    return torch.stack(
        [point if _all_finite(problem, point[None]) else _first_finite(problem, draw) for point in points]
    )


def _sample_of_rows(problem: RowDensities) -> tuple[Any, ...]:
    """The rows whose densities are checked: an even sample, or all if they are few."""
    count = len(problem.rows[0])
    largest_count = FEW_ROWS if problem.local_dim else max(FEW_ROWS, min(ROWS_TOGETHER, count_in_memory(problem.dim)))
    at = evenly(count, largest_count)
    return tuple(picked(leaf, at) for leaf in problem.rows)


def _all_finite(problem: RowDensities, points: Tensor) -> bool:
    """Whether all points have a finite density; False if the model cannot be mapped over them."""
    rows = _sample_of_rows(problem)
    parts: list[Tensor] = []

    def densities() -> None:
        for chunk in in_chunks(points, len(rows[0])):
            parts.extend(problem.vmap(lambda z: problem.log_parts(z, rows))(chunk))

    if not bool(points.isfinite().all()) or failure(densities):
        return False
    return all(bool(part.isfinite().all()) for part in parts)


def _first_finite(problem: RowDensities, draw: Callable[[], Tensor]) -> Tensor:
    rows = _sample_of_rows(problem)
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
    """Unconstrained points (R, D) that may have the same likelihood as a point (D,); R may be zero.

    All axes of the same length are reordered together: those of the locations, scales and weights of a mixture's
    components, or the rows and columns of a transition matrix. `transformed` (D,) says which entries have a transform.
    """
    images = [unconstrain(_reordered(values, sites, order)) for order in _orders(sites)]
    images += [torch.where(mask, -point, point) for mask in _signs(sites, transformed)]
    if not images:
        return point.new_zeros(0, len(point))
    candidates = torch.stack(images)
    is_new = candidates.isfinite().all(1) & (candidates != point).any(1)
    return candidates[is_new]


def _orders(sites: Mapping[str, Site]) -> list[tuple[int, ...]]:
    """The orders of values, for each length of an axis of a site."""
    orders: list[tuple[int, ...]] = []
    for size in sorted({n for site in sites.values() for n in site.shape if 1 < n <= SOME_ORDERS}):
        whole = tuple(range(size))
        if size <= EVERY_ORDER:
            orders += list(permutations(whole))[1:]
        else:
            orders += [whole[::-1], (*whole[1:], 0)]
    return orders


def _reordered(values: Mapping[str, Tensor], sites: Mapping[str, Site], order: tuple[int, ...]) -> dict[str, Tensor]:
    """Values reordered along each axis of the length of `order`."""
    reordered = {}
    for name in sites:
        value = values[name]
        for axis, size in enumerate(value.shape):
            if size == len(order):
                value = value.index_select(axis, torch.tensor(order, device=value.device))
        reordered[name] = value
    return reordered


def _signs(sites: Mapping[str, Site], transformed: Tensor) -> list[Tensor]:
    """Masks (D,) of entries that change their signs together, for sites on the real line."""
    masks = []
    for site in sites.values():
        entries = torch.zeros_like(transformed)
        entries[site.start : site.start + site.size] = True
        if not bool(transformed[entries].any()):
            masks.append(entries)
    all_entries = [torch.stack(masks).any(0)] if masks else []
    return all_entries + (masks if 1 < len(masks) <= EVERY_ORDER else [])
