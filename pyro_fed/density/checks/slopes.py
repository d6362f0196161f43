"""Models with a wrong gradient: `.item()`, `.detach()` and NumPy remove a value from the graph.

All algorithms follow gradients, and would miss the density's dependence on such a latent. Along a direction d the
gradient g is compared with the central difference (f(z + h d) - f(z - h d)) / 2h at two steps h, in float64. If the two
differences agree with each other but not with g · d, the gradient is wrong.

Rounding, comparing and counting make a density a step function of a latent: the gradient is right between two steps,
mostly zero, and does not show the steps. If the model has such an operation, see `GradientCut`, the density is examined
along a line of the latents that enter it, as in `compiling.jumps`: intervals with the largest change of the density
that its gradient does not explain, |f(b) - f(a) - (b - a) (g(a) + g(b)) / 2|, are cut repeatedly. For a continuous
density this remainder tends to zero.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import FEW_ROWS
from pyro_fed.density.checks.source import CallWatcher, Line, current_line, line_text
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.compiling.jumps import (
    NUM_CUT_INTERVALS,
    PIECES_PER_INTERVAL,
    are_likely,
    are_shortest,
    first_intervals,
    pieces,
    unexplained,
)
from pyro_fed.density.layout import Site
from pyro_fed.density.running.handlers import run_model
from pyro_fed.errors import ModelError, listed
from pyro_fed.ops.memory import count_in_memory

#: The two steps, unconstrained: rounding has an error of 1e-9 of the density, curvature an error of 1e-6.
DIFFERENCE_STEPS = (1e-4, 3e-5)
#: Relative tolerance between the differences, and relative error above which a gradient is wrong.
DIFFERENCE_TOLERANCE, WRONG_GRADIENT_SHARE = 1e-3, 1e-2

#: torch's message on an operation that it cannot differentiate.
NO_DERIVATIVE = re.compile(r"derivative for '?(?:aten::)?(\w+)")
#: Torch's own names of operations, by the names that users write.
TORCH_NAMES = {"igamma": "special_gammainc", "igammac": "special_gammaincc"}
#: The cure for steps.
STEPS_CURE = (
    "Write it smoothly, such as torch.sigmoid((x - t) / width) in place of x > t, and the latent itself in place of a "
    "rounded one; or make a count a discrete latent (pyro.sample of a Categorical), which is summed over"
)
#: The cure for a likelihood that is the same at all points.
FLAT_LIKELIHOOD = (
    "the likelihood is the same at all examined points, near zero and in the bulk of the prior, "
    "though its gradient is not zero: it is lost in rounding, such as a difference of two distribution functions "
    "that underflows beside a number that is added to it. Compute it on the log scale: log F(b) + "
    "log1p(-exp(log F(a) - log F(b))) from log-cdfs, such as torch.special.log_ndtr, with both signs changed in the "
    "upper tail; or give the latents a prior on the scale of the data"
)
#: Names of piecewise constant operations, whose gradient is zero; without underscores.
STEP_OPERATIONS = frozenset(
    (
        *("floor", "ceil", "round", "trunc", "fix", "sign", "sgn", "frac", "heaviside", "floor_divide", "floordiv"),
        *("rfloordiv", "remainder", "mod", "rmod", "fmod"),
    )
)
#: Properties of a tensor that do not depend on its numbers.
SHAPE_QUERIES = frozenset(
    ("dim", "size", "numel", "nelement", "is_floating_point", "is_complex", "__len__", "__get__", "stride")
)
#: Largest number of cuts that are recorded.
MAX_CUTS = 64


def points_beside(at: Tensor) -> Tensor:
    """The points (M, D) around a point (D,) at which `check_slope` needs the density."""
    return _difference_points(at, _direction(at))


def check_slope(
    values: Tensor,
    slope: Tensor,
    points: Tensor,
    run: Callable[[Tensor], tuple[Tensor, Tensor]],
    sites: Mapping[str, Site],
    left: Callable[[], str],
    flat: bool,
) -> None:
    """Refuse a model whose gradient `slope` (D,) at the first of the points (P, D) is not its density's.

    `values` (M,) are log densities at `points_beside` the first, in float64. If the gradient is wrong, `run` computes
    log densities (M,) and gradients (M, D) at points (M, D). `left` quotes a line that removes a value from the graph;
    `flat` says that the likelihood is constant.
    """
    # A value outside the graph is so at all points. A difference that underflows, such as that of two distribution
    # functions in their tails, does so at some points: if the gradient is right at another point, the model is
    # accepted.
    at = points[0]
    direction = _direction(at)
    if _is_right(values, slope, direction) is not False:
        return
    wrong_sites = []
    for name, site in sites.items():
        site_direction = torch.zeros_like(direction)
        site_direction[site.start : site.start + site.size] = direction[site.start : site.start + site.size]
        if _is_right(run(_difference_points(at, site_direction))[0], slope, site_direction) is False:
            wrong_sites.append(name)
    names, line = listed(map(repr, wrong_sites or sites)), left()
    if flat and not line:
        raise ModelError(FLAT_LIKELIHOOD)
    if not line and _right_elsewhere(run, torch.cat([points[1:], _nearby(at)]), direction):
        return
    raise ModelError(
        f"the gradient of the model's log density in {names} is not that of its values: "
        f"{line or 'an operation of the model'} takes the value out of torch's graph, such as .item(), "
        ".detach(), float(), torch.tensor(value) or NumPy, so that no algorithm can infer it from the data. Compute "
        "with torch's functions on the tensor itself"
    )


def steps(problem: RowDensities, z: Tensor) -> dict[str, Line]:
    """Latents along which the log density jumps, from z (D,), with the lines of the model that cause the jumps."""
    generator = torch.Generator().manual_seed(6)
    at = torch.randperm(len(problem.rows[0]), generator=generator)[:FEW_ROWS]
    rows = tuple(leaf[at] for leaf in problem.rows)
    local = torch.randn(len(at), problem.local_dim, generator=generator, dtype=torch.float64)
    point = torch.cat([z.detach(), local.flatten()])
    return {
        name: line
        for name, line in _latents_of_cuts(problem, rows, point).items()
        if _jumps(problem, rows, point, _line_of(problem, name, len(at)))
    }


def steps_warning(found: Mapping[str, Line]) -> str:
    """A sentence on the latents and lines of `steps`."""
    lines = listed(list(dict.fromkeys(map(line_text, found.values()))))
    return (
        f"the log density jumps along {listed(map(repr, found))}, at {lines}: rounding, comparing and counting make "
        "the density a step function, and the gradients that all algorithms here follow do not show the steps"
    )


def no_derivative_error(problem: RowDensities, error: Exception) -> ModelError | None:
    """The error for an operation that torch cannot differentiate, from torch's error; None for other errors."""
    match = NO_DERIVATIVE.search(str(error))
    if match is None:
        return None
    rows = tuple(leaf[:2] for leaf in problem.rows)
    point = torch.zeros(problem.dim + len(rows[0]) * problem.local_dim, dtype=torch.float64, requires_grad=True)
    names = frozenset((match[1], TORCH_NAMES.get(match[1], match[1])))
    gradient_cuts = cuts(problem.doubled(), *_parts(problem, point, rows), names)
    at = f" at {line_text(gradient_cuts[0].line)}" if gradient_cuts else ""
    cure = STEPS_CURE if match[1] in STEP_OPERATIONS else "Write it by functions that have one"
    return ModelError(f"torch has no derivative of {match[1]}{at}, and all algorithms here follow gradients. {cure}")


def _latents_of_cuts(problem: RowDensities, rows: tuple[Tensor, ...], point: Tensor) -> dict[str, Line]:
    """Latents that enter an operation without a gradient, and the first such line of each."""
    leaf, lines_by_latent = point.clone().requires_grad_(), dict[str, Line]()
    with torch.enable_grad():
        gradient_cuts = cuts(problem, *_parts(problem, leaf, rows))
    for cut in gradient_cuts:
        weights = torch.randn(cut.input.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((weights * cut.input).sum(), leaf, retain_graph=True, allow_unused=True)
        if slope is None:
            continue
        for name in (*problem.sites, *problem.layout.local):
            if bool((slope * _line_of(problem, name, len(rows[0]))).any()):
                lines_by_latent.setdefault(name, cut.line)
    return lines_by_latent


def _parts(problem: RowDensities, point: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The model's input at a point: z, the rows and their latents."""
    z, local = point.split([problem.dim, len(point) - problem.dim])
    return z, rows, local.reshape(len(rows[0]), problem.local_dim)


def _line_of(problem: RowDensities, name: str, count: int) -> Tensor:
    """A direction along one latent, in the flat vector and the latents of `count` rows."""
    z = torch.zeros(problem.dim, dtype=torch.float64)
    local = torch.zeros(count, problem.local_dim, dtype=torch.float64)
    site = problem.sites.get(name) or problem.layout.local[name]
    entries = z[site.start : site.start + site.size] if name in problem.sites else _columns(local, site)
    entries += torch.randn(entries.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    line = torch.cat([z, local.flatten()])
    return line / line.abs().max()


def _columns(local: Tensor, site: Site) -> Tensor:
    return local[:, site.start : site.start + site.row_size]


def _jumps(problem: RowDensities, rows: tuple[Tensor, ...], point: Tensor, line: Tensor) -> bool:
    """Whether the log density jumps along a line through a point."""

    def density(point: Tensor) -> Tensor:
        outside, inside = problem.log_terms(*_parts(problem, point, rows))
        return sum((terms.sum() for terms in (*outside.values(), *inside.values())), point.new_zeros(()))

    def along(t: Tensor) -> tuple[Tensor, Tensor]:
        slope, value = grad_and_value(density)(point + t * line)
        return value, slope @ line

    start, end = first_intervals(point)
    best = point.new_full((), -torch.inf)
    while True:
        places, where = torch.cat([start, end]).unique(return_inverse=True)  # adjacent intervals share an end
        runs = [_run(problem, along, some) for some in places.split(count_in_memory(len(point)))]
        values, slopes = (torch.cat(part)[where].chunk(2) for part in zip(*runs, strict=True))
        best = torch.maximum(best, torch.cat(values).nan_to_num(nan=-torch.inf, posinf=-torch.inf).max())
        remainder = unexplained(end - start, values[1] - values[0], slopes[0], slopes[1]).nan_to_num(
            nan=0.0, posinf=0.0
        )
        largest, which = torch.where(are_likely(values[0], values[1], best), remainder, 0.0).topk(NUM_CUT_INTERVALS)
        which = which[largest > NEGLIGIBLE]
        if not len(which):
            return False
        start, end = start[which], end[which]
        if are_shortest(start, end):
            first, second = remainder.reshape(-1, PIECES_PER_INTERVAL).topk(2, 1).values.unbind(1)
            return bool(((first > NEGLIGIBLE) & (second < NEGLIGIBLE)).any())  # one step; rounding makes many
        start, end = pieces(start, end)


def _run(problem: RowDensities, along: Callable[[Tensor], Any], places: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes at places; NaN if the model cannot be run there, such as beyond the end of a table."""
    try:
        found: tuple[Tensor, Tensor] = problem.vmap(along)(places)
        return found
    except (*FAILURES, IndexError, OverflowError):
        if len(places) == 1:
            return torch.full_like(places, torch.nan), torch.full_like(places, torch.nan)
    values, slopes = zip(*(_run(problem, along, one) for one in places.split(1)), strict=True)
    return torch.cat(values), torch.cat(slopes)


def _right_elsewhere(run: Callable[[Tensor], tuple[Tensor, Tensor]], points: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is right at one of the points, along this direction."""
    beside_each = torch.cat([_difference_points(point, direction) for point in points])
    values, slopes = run(torch.cat([points, beside_each]))
    count = len(points)
    each = zip(values[count:].reshape(count, -1), slopes[:count], strict=True)
    return any(_is_right(differences, slope, direction) for differences, slope in each)


def _nearby(at: Tensor) -> Tensor:
    """Points (4, D) around a point, at typical distances between unconstrained latents."""
    generator = torch.Generator().manual_seed(5)
    return at + torch.randn(4, len(at), generator=generator, dtype=torch.float64)


def _direction(at: Tensor) -> Tensor:
    return torch.randn(len(at), generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _difference_points(at: Tensor, direction: Tensor) -> Tensor:
    return torch.stack([at + sign * step * direction for step in DIFFERENCE_STEPS for sign in (1, -1)])


def _is_right(values: Tensor, slope: Tensor, direction: Tensor) -> bool | None:
    """Whether the gradient is right along a direction; None if that cannot be decided."""
    first, second = (values[0::2] - values[1::2]) / (2 * torch.tensor(DIFFERENCE_STEPS, dtype=values.dtype))
    size = (slope * direction).abs().sum() + first.abs()
    is_wrong = (first - slope @ direction).abs() > WRONG_GRADIENT_SHARE * size
    rounding = torch.finfo(values.dtype).eps * values.abs().max() / min(DIFFERENCE_STEPS)  # of a difference
    differences_agree = ((first - second).abs() <= DIFFERENCE_TOLERANCE * size) & (
        rounding <= WRONG_GRADIENT_SHARE * size
    )
    is_decided = differences_agree & values.isfinite().all() & slope.isfinite().all() & (size > 0)
    return not bool(is_wrong) if bool(is_decided) else None


class GradientCut(NamedTuple):
    """An operation of the model without a gradient of its numbers."""

    line: Line  # of the model
    input: Tensor  # input of the operation, which has a gradient
    real: bool  # whether its output is real


class _GradientCuts(CallWatcher):
    """Records lines of the model whose input has a gradient and whose output has none, or that are in `stepping`."""

    def __init__(self, stepping: Collection[str]) -> None:
        super().__init__()
        self.stepping = stepping
        self.found: list[GradientCut] = []

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        name = getattr(function, "__name__", "")
        takes_shape_only = name.endswith("_like") or name.startswith("new_")  # takes a shape alone
        real, counted = _is_cut(value), _is_counted(value) and name not in SHAPE_QUERIES
        if (
            not takes_shape_only
            and (real or counted or name.strip("_") in self.stepping)
            and len(self.found) < MAX_CUTS
        ):
            cut_input = next(
                (part for part in pytree.tree_leaves(args) if isinstance(part, Tensor) and part.requires_grad), None
            )
            line = None if _in_a_function() else current_line()
            if cut_input is not None and line is not None:
                self.found.append(GradientCut(line, cut_input, real))


class StepWatcher(CallWatcher):
    """Records whether a line of the model may make a step function of a mapped or differentiated tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        name = getattr(function, "__name__", "")
        counted = isinstance(value, float) or (_is_counted(value) and name not in SHAPE_QUERIES)
        if not self.found and (counted or name.strip("_") in STEP_OPERATIONS):
            is_wrapped_input = any(isinstance(part, Tensor) and is_wrapped(part) for part in pytree.tree_leaves(args))
            self.found = is_wrapped_input and current_line() is not None


def _in_a_function() -> bool:
    """Whether the running code is the forward of a `torch.autograd.Function`, which defines a gradient."""
    frame: Any = sys._getframe(1)
    apply: Any = torch.autograd.Function.apply
    while frame is not None and frame.f_code is not run_model.__code__:
        if frame.f_code is apply.__func__.__code__:
            return True
        frame = frame.f_back
    return False


def _is_cut(value: Any) -> bool:
    """Whether a value consists of real numbers without a gradient."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and not value.requires_grad
    return isinstance(value, float)


def _is_counted(value: Any) -> bool:
    """Whether a value consists of integers or booleans."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex()
    return isinstance(value, int)


def cuts(
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, stepping: Collection[str] = STEP_OPERATIONS
) -> list[GradientCut]:
    """Operations on the model's own lines without a gradient with respect to z (D,) or `local` (n, d)."""
    cutting = _GradientCuts(stepping)
    try:
        with torch.enable_grad(), cutting:
            problem.log_terms(z, rows, local)
    except (RuntimeError, ValueError, IndexError, TypeError):  # cuts before the error count
        pass
    return cutting.found


def line_leaving_graph(problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> str:
    """The model's line that removes a value from torch's graph at z (D,), quoted; "" if there is none."""
    gradient_cuts = cuts(problem, z.detach().clone().requires_grad_(), rows, local)
    return next((line_text(cut.line) for cut in gradient_cuts if cut.real), "")
