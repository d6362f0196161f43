"""Numerical checks that a model's likelihood factorises over the partitioned plate.

Each row's log-likelihood must not depend on other rows, and sites outside the plate must not depend on the rows. The
model is run on its rows, and again on pairs of them: a pair differs from all rows in means, extremes, ranks, places,
number and groups, so that a dependence on any of these shows. The pairs contain the rows with the smallest, the largest
and the smallest absolute value of each column, and random rows. Large data are sampled in the same way, since an edge,
such as a dose of zero, may be one row of thousands.

The checks compare densities and gradients in float64, since rounding in float32 hides the effect of a neighbour, and at
several points, near zero and in the bulk of the prior, since some effects are local. A difference is rounding if a
change of the inputs in their last digits has an effect of the same size.

Models with imputed entries are run once more, with another value for these. `blame` finds the line and the cause of a
failure for the message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad
from torch.utils import _pytree as pytree

from pyro_fed.conventions.limits import ROUNDING_UNITS, SAME_SHARE
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.blame import Sample, fails_on_some_rows_error, not_factorising_error, random_model_error
from pyro_fed.density.checks.first_run import FirstRun, local_points, points
from pyro_fed.density.checks.plates import plate_tree
from pyro_fed.density.checks.points import FEW_ROWS, MAX_PRIOR_DRAW, MAX_TRIES, NUM_DRAWS, RADIUS, ROWS_TOGETHER
from pyro_fed.density.checks.slopes import (
    STEPS_CURE,
    StepWatcher,
    check_slope,
    line_leaving_graph,
    no_derivative_error,
    points_beside,
    steps,
    steps_warning,
)
from pyro_fed.density.checks.undefined import (
    UndefinedError,
    partly_undefined,
    refuse_undefined,
    slopes_and_bends,
)
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.edges import find_walls
from pyro_fed.density.rows.files import blocks
from pyro_fed.density.running.site_values import Computed
from pyro_fed.density.running.trace_sites import is_imputed
from pyro_fed.density.starts import draw_starts
from pyro_fed.errors import ModelError, PyroFedError, listed, warn_user
from pyro_fed.ops.memory import count_in_memory, count_in_step

#: Number of rows in pairs, and number of columns whose extreme rows are among them.
PAIRED_ROWS, EXTREME_COLUMNS = 1024, 32
#: With fewer rows each row is paired with itself: two pairs may have the same summaries as their four rows.
MIN_PAIRED_ROWS = 6
#: Numbers of rows and of points, if the model has to be run pair by pair.
LOOPED_ROWS, LOOPED_POINTS = 12, 2

Terms = dict[str, Tensor]


class _Run(NamedTuple):
    """Densities of pairs, outside (R, P) and inside (R, P, 2), a gradient (P, D), and whether all is finite (P,)."""

    outside: Terms
    inside: Terms
    slope: Tensor
    size: Tensor
    regular: Tensor


def check_splits(problem: RowDensities, initial_run: FirstRun) -> None:
    """Refuse a model that does not split over rows; the model is mapped by the problem's own mapping."""
    try:
        with torch.random.fork_rng(devices=[]):  # a model's own draws must not change later draws
            double_problem = problem.doubled()
            sample = _sample(double_problem, initial_run)
            with StepWatcher() as stepping, Computed() as computed:
                all_rows, values = _run_all_rows_and_beside(double_problem, sample)
            if walls := find_walls(
                double_problem, initial_run, computed.names
            ):  # in float64: an overflow in float32 is no wall
                all_rows, values = _run_all_rows_and_beside(double_problem, sample)
            _check_range(double_problem, initial_run, sample, all_rows)
            if not bool(all_rows.regular[0]):
                sample = _from_a_regular_point(double_problem, sample, all_rows.regular)
                all_rows, values = _run_all_rows_and_beside(double_problem, sample)
            each_pair = _run_each_pair(double_problem, sample)
            _compare(double_problem, sample, all_rows, each_pair)
            _compare_with_all(double_problem, initial_run, sample, each_pair)
            check_slope(
                values,
                all_rows.slope[0],
                sample.z,
                partial(_total_and_slope, double_problem, sample),
                double_problem.sites,
                partial(line_leaving_graph, double_problem, sample.z[0], sample.all_together, sample.local[0]),
                _is_flat(all_rows),
            )
            if stepping.found and (step_lines := steps(double_problem, sample.z[0])):
                warn_user(f"{steps_warning(step_lines)}. {STEPS_CURE}")
            if not bool(all_rows.regular.all()):
                _look_for_undefined(problem, double_problem, sample, walls, bool(all_rows.regular.any()))
            _check_imputed(double_problem, initial_run, sample, all_rows)
            for wall in walls:
                warn_user(wall)
    except ModelError as error:
        error.args = (f"{error}{plate_tree(problem.bound)}",)
        raise
    except RuntimeError as error:
        if (derivative_error := no_derivative_error(problem, error)) is None:
            raise
        raise derivative_error from error


def _look_for_undefined(
    problem: RowDensities, double_problem: RowDensities, sample: Sample, walls: Sequence[str], regular: bool
) -> None:
    """Refuse rows that are undefined at all points, and record those without derivatives at many or all.

    `regular` says that all is finite at one of the sample's points.
    """
    draws = _prior_draws(double_problem, sample)
    points = torch.cat([sample.z, draws[: NUM_DRAWS if regular else len(sample.z)]])
    local = sample.local[torch.arange(len(points)) % len(sample.z)]
    examined, bound = (double_problem, points, sample.rows, local, sample.at), problem.bound

    def undefined() -> list[UndefinedError]:
        if not regular:
            try:
                refuse_undefined(*examined, walls)
            except UndefinedError as error:
                if error.order < 2:
                    raise
                return [error]
        return partly_undefined(*examined) if regular or bound.forward_mode else []

    errors = undefined()
    if errors and errors[0].order == 2 and not problem.local_dim:  # integrals over rows' latents take reverse mode
        bound.forward_mode.extend(errors)
        with suppress(*FAILURES):  # of an operation without forward mode
            by_forward = undefined()
            if sum(error.share for error in by_forward) < errors[0].share:
                errors = by_forward
        if errors == bound.forward_mode:
            bound.forward_mode.clear()
    for error in errors:
        (bound.partly_undefined if regular or error.share < 1 else bound.without_curvature).append(error)


# -- rows and points --------------------------------------------------------------------------------------------
def _sample(problem: RowDensities, initial_run: FirstRun) -> Sample:
    bound = problem.bound
    count = _reference_rows(bound.num_rows, problem.dim)
    at_random = torch.randperm(bound.num_rows, generator=torch.Generator().manual_seed(0))[:count].tolist()
    edges = extreme_rows(problem.rows)[: count // 2] if count < bound.num_rows else []
    at = torch.tensor(list(dict.fromkeys([*edges, *at_random]))[:count]).sort().values
    rows = tuple(leaf[at] for leaf in problem.rows)
    number = LOOPED_POINTS if problem.looped or count_in_step(problem.dim) < PAIRED_ROWS else None
    pairs = _pairs(problem, rows)
    weight = torch.rand(pairs.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Sample(
        at,
        rows,
        bound.all_rows if len(at) == bound.num_rows else rows,
        pairs,
        weight,
        points(problem, initial_run)[:number],
        local_points(problem, initial_run, at)[:number],
    )


def _reference_rows(num_rows: int, dim: int) -> int:
    """Number of rows that are examined together at all points; fewer for very many parameters."""
    return min(num_rows, ROWS_TOGETHER, max(FEW_ROWS, count_in_step(dim)))


def _pairs(problem: RowDensities, rows: tuple[Any, ...]) -> Tensor:
    """Places (R, 2) of rows with extreme values and of random rows, each once; few rows are paired with themselves."""
    count = len(rows[0])
    if count < MIN_PAIRED_ROWS:
        return torch.arange(count).unsqueeze(-1).expand(-1, 1 if count == 2 else 2)
    largest_count = LOOPED_ROWS if problem.looped else min(PAIRED_ROWS, count_in_memory(3 * problem.dim))
    largest_count = max(largest_count, MIN_PAIRED_ROWS)
    at_random = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    places = list(dict.fromkeys([*extreme_rows(rows)[: largest_count // 2], *at_random]))[
        : min(largest_count, count) // 2 * 2
    ]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(3))
    return torch.tensor(places)[order].reshape(-1, 2)


def extreme_rows(rows: tuple[Any, ...]) -> list[int]:
    """Places of the smallest, largest and smallest absolute value in some columns; whole numbers first: maybe sizes."""
    leaves = [leaf for leaf in rows if isinstance(leaf, Tensor) and leaf.numel() and not leaf.is_complex()]
    left, places = EXTREME_COLUMNS, list[int]()
    for leaf in sorted(leaves, key=lambda leaf: leaf.is_floating_point()):
        if left > 0:
            found = _extremes_of(leaf, left)
            left -= len(found)
            places += found.flatten().tolist()
    return places


def _extremes_of(leaf: Tensor, columns: int) -> Tensor:
    """Those of the first columns of one tensor (c, 3): the blocks of rows that have them, and where these have them."""

    def of_block(block: Tensor) -> tuple[Tensor, ...]:
        values = block.reshape(len(block), -1)[:, :columns]
        values = values if values.is_floating_point() else values.double()
        return values, -values, values.abs()

    least = [torch.stack([values.amin(0) for values in of_block(block)], -1) for block in blocks(leaf)]
    number = torch.stack(least).argmin(0)
    places, first = torch.empty_like(number), 0
    for block_number, block in enumerate(blocks(leaf)):
        for column, which in (number == block_number).nonzero().tolist():
            places[column, which] = first + of_block(block)[which][:, column].argmin()
        first += len(block)
    return places


# -- running the model ------------------------------------------------------------------------------------------
def _run(
    problem: RowDensities,
    z: Tensor,
    rows: tuple[Any, ...],
    local: Tensor,
    weight: Tensor,
    share: float,
    curved: bool = False,
) -> Any:
    """Gradient (D,) of weighted rows' terms and a share of the sites outside; parts that must be finite; all terms."""

    def total(point: Tensor, own: Tensor) -> tuple[Tensor, Any]:
        outside, inside = problem.log_terms(point, rows, own)
        prior = sum(outside.values(), point.new_zeros(()))
        value = sum(((weight * terms).sum() for terms in inside.values()), share * prior)
        return value, (value, outside, inside)

    if curved:
        slopes, bends, (value, *terms) = slopes_and_bends(total, z, local, problem.forward_mode)
    else:
        slope, (value, *terms) = grad(total, has_aux=True)(z, local)
        slopes, bends = (slope,), ()
    return slopes[0], (value, *slopes, *bends), terms


def _run_all_rows(problem: RowDensities, sample: Sample, curved: bool = False) -> _Run:
    """All rows of the sample at once, weighted as in the pairs."""
    pairs, weight = sample.pairs, sample.weight
    each = weight.new_zeros(len(sample.at)).index_add(0, pairs.flatten(), weight.flatten())  # (n,)

    def at_point(z: Tensor, local: Tensor) -> Any:
        return _run(problem, z, sample.all_together, local, each, 1.0, curved)

    try:
        slope, parts, (outside, inside) = problem.vmap(at_point)(sample.z, sample.local)
    except (RuntimeError, NotImplementedError):  # without torch's second derivative, only gradients are checked
        if not curved:
            raise
        return _run_all_rows(problem, sample)
    return _Run(
        {name: value.expand(len(pairs), -1) for name, value in outside.items()},
        {name: terms[:, pairs].movedim(1, 0) for name, terms in inside.items()},
        slope,
        slope.abs(),
        torch.stack([part.isfinite().flatten(1).all(1) if part.dim() > 1 else part.isfinite() for part in parts]).all(
            0
        ),
    )


def _run_all_rows_and_beside(problem: RowDensities, sample: Sample) -> tuple[_Run, Tensor]:
    """`_run_all_rows`, and totals at `points_beside` the first point, in one run of the model."""
    here, first = slice(len(sample.z)), _at_first(sample, points_beside(sample.z[0]))
    both = sample._replace(z=torch.cat([sample.z, first.z]), local=torch.cat([sample.local, first.local]))
    run = _run_all_rows(problem, both, curved=True)
    outside, inside = ({name: value[:, here] for name, value in terms.items()} for terms in run[:2])
    first_points = _Run(outside, inside, *(part[here] for part in run[2:]))
    return first_points, _totals(run, sample)[len(sample.z) :]


def _from_a_regular_point(problem: RowDensities, sample: Sample, regular: Tensor) -> Sample:
    """The sample with a first point where all is finite, its own or a prior draw; unchanged if there is none."""
    if bool(regular.any()):
        first = int(regular.float().argmax())
        order = torch.tensor([first, *(point for point in range(len(regular)) if point != first)])
        return sample._replace(z=sample.z[order], local=sample.local[order])
    for draws in _prior_draws(problem, sample).split(len(sample.z)):
        found = _run_all_rows(problem, _at_first(sample, draws), curved=True).regular
        if bool(found.any()):
            return sample._replace(z=torch.cat([draws[found][:1], sample.z[1:]]))
    return sample


def _prior_draws(problem: RowDensities, sample: Sample) -> Tensor:
    """Draws of the priors at which all may be finite, (P, D)."""
    generator = torch.Generator().manual_seed(0)
    return draw_starts(problem, MAX_TRIES, generator, None, RADIUS, checked=False).clamp(
        -MAX_PRIOR_DRAW, MAX_PRIOR_DRAW
    )


def _total_and_slope(problem: RowDensities, sample: Sample, points: Tensor) -> tuple[Tensor, Tensor]:
    """The sums that `_run_all_rows` differentiates, (M,), and gradients (M, D), at points (M, D)."""
    run = _run_all_rows(problem, _at_first(sample, points))
    return _totals(run, sample), run.slope


def _check_range(problem: RowDensities, initial_run: FirstRun, sample: Sample, run: _Run) -> None:
    """Refuse rows whose densities exceed the range or the digits of float64, so that latents do not change them."""
    # A density of zero is an overflow if the squares of the data overflow; otherwise it may be an end of the support. A
    # density that loses 1 nat to rounding is the same number at all points.
    numbers = [leaf for leaf in sample.all_together if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    largest = max((float(leaf.abs().max()) for leaf in numbers if leaf.numel()), default=0.0)
    squares_overflow = torch.finfo(torch.float64).max ** 0.5 < largest < math.inf
    for name in run.inside.keys() & (problem.layout.observed.keys() - problem.layout.factors):
        terms, msg = run.inside[name], initial_run.execution.trace.nodes[name]  # (R, P, 2)
        is_lost = (terms == terms[:, :1]) & (terms.abs() > 1.0 / torch.finfo(terms.dtype).eps)
        is_lost &= terms.isfinite() | squares_overflow
        lost_rows = is_lost.all(1).flatten()
        if not bool(lost_rows.any()) or not bool(msg["fn"].support.check(msg["value"]).all()):
            continue
        rows = sample.at[sample.pairs].flatten()[lost_rows].unique().tolist()
        raise ModelError(
            f"site '{name}': its log density exceeds the range of float64, or its precision of 1 nat, in "
            f"{len(rows)} of the {lost_rows.numel()} rows examined (rows {listed(rows)}), with "
            f"{listed(map(repr, problem.sites))} near zero and in the bulk of their priors. The numbers of these "
            "rows are too large for the model's scale: divide the data by their own scale before the model, or "
            "give the latents priors on the scale of the data"
        )


def _is_flat(run: _Run) -> bool:
    """Whether the likelihood is the same at all points."""
    return all(bool((terms == terms[:, :1]).all()) for terms in run.inside.values())


def _at_first(sample: Sample, points: Tensor) -> Sample:
    """The sample at points (M, D), with the rows' latents of its first point at each."""
    return sample._replace(z=points, local=sample.local[:1].expand(len(points), *sample.local.shape[1:]))


def _totals(run: _Run, sample: Sample) -> Tensor:
    """Weighted sums of a run's terms at its points, (M,)."""
    totals = run.slope.new_zeros(len(run.slope))
    for terms in run.outside.values():
        totals = totals + terms[0]
    for terms in run.inside.values():
        totals = totals + (sample.weight[:, None] * terms).sum((0, 2))
    return totals


def _run_each_pair(problem: RowDensities, sample: Sample) -> _Run:
    """Every pair in a run of its own."""
    pairs, share = sample.pairs, 1.0 / len(sample.pairs)

    def pair(rows: tuple[Any, ...], local: Tensor, weight: Tensor) -> Any:
        return problem.vmap(lambda z, own: _run(problem, z, rows, own, weight, share))(sample.z, local)

    try:
        slope, _, (outside, inside) = problem.vmap(pair)(
            tuple(leaf[pairs] for leaf in sample.rows), sample.local[:, pairs].movedim(1, 0), sample.weight
        )
    except PyroFedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        if not problem.looped:
            raise
        raise fails_on_some_rows_error(problem, error) from error
    return _Run(outside, inside, slope.sum(0), slope.abs().sum(0), slope.isfinite().all(2).all(0))


# -- comparing --------------------------------------------------------------------------------------------------
def _compare(problem: RowDensities, sample: Sample, whole: _Run, apart: _Run) -> None:
    """Refuse values that differ by more than rounding between all rows together and pairs."""
    for kind, name, _ in _differences(whole, apart):
        _refuse_unless_rounding(problem, sample, kind, name, whole, apart)
    if bool(_different_slopes(whole, apart).any()):
        _refuse_unless_rounding(problem, sample, "slope", "", whole, apart)


def _differences(whole: _Run, apart: _Run) -> Iterator[tuple[str, str, Tensor | None]]:
    """Kind, name and mask of the densities that differ; the mask is None if the pairs do not have the site."""
    for kind in ("outside", "inside"):
        for name, value in getattr(whole, kind).items():
            pair_value = _values_of_run(apart, kind, name)
            differs = None if pair_value is None else where_different(value, pair_value)
            if differs is None or bool(differs.any()):
                yield kind, name, differs


def _different_slopes(whole: _Run, apart: _Run) -> Tensor:
    """Where finite gradients differ: a row outside the pairs may have a gradient that is not finite."""
    finite = whole.slope.isfinite() & apart.slope.isfinite()
    return finite & where_different(whole.slope, apart.slope, whole.size + apart.size)


def where_different(a: Tensor, b: Tensor, size: Tensor | None = None) -> Tensor:
    """Whether entries of two values differ."""
    scale = torch.maximum(a.abs(), b.abs()) if size is None else size
    same = (a == b) | (a.isnan() & b.isnan())
    return ~(((a - b).abs() <= SAME_SHARE * (1 + scale)) | same)


def _refuse_unless_rounding(
    problem: RowDensities, sample: Sample, kind: str, name: str, whole: _Run, apart: _Run
) -> None:
    """Refuse the model for a difference, unless it is rounding."""
    expected, pair_value = _values_of_run(whole, kind, name), _values_of_run(apart, kind, name)
    if pair_value is None or expected is None:
        raise not_factorising_error(problem, sample, kind, name, expected, None, None)
    repeated = _values_of_run(_run_each_pair(problem, sample), kind, name)
    if repeated is None or bool(where_different(repeated, pair_value).any()):
        raise random_model_error(problem, sample, kind, name, pair_value, repeated)
    differs = _different_slopes(whole, apart) if kind == "slope" else where_different(expected, pair_value)
    nudged = _nudged_sample(sample)
    rounding = torch.zeros_like(expected)
    for run, value in ((_run_all_rows, expected), (_run_each_pair, pair_value)):
        nudged_value = _values_of_run(run(problem, nudged), kind, name)
        rounding = rounding + (
            torch.inf if nudged_value is None else (nudged_value - value).abs().nan_to_num(torch.inf)
        )
    differs &= ~((pair_value - expected).abs() <= rounding)
    if bool(differs.any()):
        raise not_factorising_error(problem, sample, kind, name, expected, pair_value, differs)


def _values_of_run(run: _Run, kind: str, name: str) -> Tensor | None:
    return run.slope if kind == "slope" else getattr(run, kind).get(name)


def _nudged_sample(sample: Sample) -> Sample:
    """The sample with inputs changed in their last digits, by more than the effect of another order of summation."""
    nudge = 1 + ROUNDING_UNITS * torch.finfo(torch.float64).eps

    def nudged_leaves(rows: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf * nudge if leaf.is_floating_point() else leaf, rows)

    return sample._replace(
        rows=nudged_leaves(sample.rows),
        all_together=nudged_leaves(sample.all_together),
        z=sample.z * nudge,
        local=sample.local * nudge,
    )


def _compare_with_all(problem: RowDensities, initial_run: FirstRun, sample: Sample, apart: _Run) -> None:
    """Compare the pairs with all rows at the first point, if there are more rows than the sample."""
    bound = problem.bound
    if len(sample.at) == bound.num_rows:
        return
    local = local_points(problem, initial_run, torch.arange(bound.num_rows))[0]
    local[sample.at] = sample.local[0]
    each = local.new_ones(bound.num_rows)
    slope, _, (outside, inside) = _run(problem, sample.z[0], bound.all_rows, local, each, 1.0)
    if not bool(slope.isfinite().all()) and bool(apart.regular[0]):  # in rows outside of the sample
        for block in torch.arange(bound.num_rows).split(ROWS_TOGETHER):
            rows, local_block = tuple(leaf[block] for leaf in problem.rows), local[block].expand(len(sample.z), -1, -1)
            refuse_undefined(problem, sample.z, rows, local_block, block)
    at = sample.at[sample.pairs]
    first = _Run(
        {name: value[:, :1] for name, value in apart.outside.items()},
        {name: terms[:, :1] for name, terms in apart.inside.items()},
        *(part[:1] for part in apart[2:]),
    )
    everything = _Run(
        {name: value.expand(len(at), 1) for name, value in outside.items()},
        {name: terms[at].unsqueeze(1) for name, terms in inside.items()},
        *first[2:],
    )
    for kind, name, off in _differences(everything, first):
        expected, found = _values_of_run(everything, kind, name), _values_of_run(first, kind, name)
        raise not_factorising_error(
            problem, sample._replace(z=sample.z[:1]), kind, name, expected, found, off, bound.num_rows
        )


def _check_imputed(problem: RowDensities, initial_run: FirstRun, sample: Sample, whole: _Run) -> None:
    """Refuse a model that uses imputed entries elsewhere: another value for these must not change a density."""
    trace, plates = initial_run.execution.trace, initial_run.execution.filler.plates
    if not any(msg["type"] == "sample" and is_imputed(msg, plates) for msg in trace.nodes.values()):
        return
    _, imputed = problem.log_terms(sample.z[0], sample.all_together, sample.local[0], placeholder=1.0)
    for name, terms in imputed.items():
        if bool(where_different(terms[sample.pairs], whole.inside[name][:, 0]).any()):
            raise ModelError(
                f"imputed entries (obs_mask) in plate '{problem.bound.plate}' are used again by site '{name}', so "
                "they are latents inside the plate. Write them as one: `known = ~torch.isnan(x)`, in the plate "
                '`drawn = pyro.sample("drawn", prior)`, the observed ones by `pyro.sample("x", prior, '
                "obs=torch.where(known, x, drawn.detach()))` under `poutine.mask(mask=known)`, and then "
                "`torch.where(known, x, drawn)` in place of x; or mask the likelihood, or impute outside the model"
            )
