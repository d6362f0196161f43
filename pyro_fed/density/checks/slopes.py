"""A model whose gradient is not that of its density: `.item()`, `.detach()` and NumPy take a value out of the graph.

All algorithms follow gradients, and would miss the density's dependence on such a latent. Along a direction d the
gradient g is compared with the central difference (f(z + h d) - f(z - h d)) / 2h at two steps h, in float64; if the two
differences agree with each other, and not with g · d, the gradient is wrong.

Rounding, comparing and counting turn a latent into steps: the gradient is right between two of them, mostly zero, and
does not show the next. If the model has such an operation, see `GradientCut`, the latents that go into it are
followed along a line as in `compiling.jumps`: intervals over which the density changes by most that its gradient does
not explain, |f(b) - f(a) - (b - a) (g(a) + g(b)) / 2|, are cut repeatedly. For a density that is smooth, or at
least continuous, that remainder tends to zero.
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

#: The two steps, in units of the unconstrained space: the error of rounding is 1e-9 of the density, of curvature 1e-6.
DIFFERENCE_STEPS = (1e-4, 3e-5)
#: Relative tolerance between the differences, and error above which a gradient is wrong, unless it is rounding.
DIFFERENCE_TOLERANCE, WRONG_GRADIENT_SHARE = 1e-3, 1e-2

#: torch's message on an operation that it cannot differentiate.
NO_DERIVATIVE = re.compile(r"derivative for '?(?:aten::)?(\w+)")
#: Users' names of operations that have other names in torch.
CALLED = {"igamma": "special_gammainc", "igammac": "special_gammaincc"}
#: The cure for steps.
OF_STEPS = (
    "Write it smoothly, such as torch.sigmoid((x - t) / width) in place of x > t, and the latent itself in place of a "
    "rounded one; or make what is counted a discrete latent (pyro.sample of a Categorical), which is summed over"
)

#: The cure for a likelihood that is the same at all points.
FLAT = (
    "the likelihood is the same at all points at which it was looked at, near zero and where the prior has its mass, "
    "though its gradient is not zero: it is lost in rounding there, as a difference of two distribution functions is "
    "that underflows beside the number that is added to it. Compute it on the log scale: log F(b) + "
    "log1p(-exp(log F(a) - log F(b))) from log-cdfs, such as torch.special.log_ndtr, with both signs changed in the "
    "upper tail; or give the latents a prior whose mass is where the data are"
)


#: Operations that turn their input into steps, and have a gradient of zero; without underscores.
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


#: The most cuts that are recorded.
MAX_CUTS = 64


def points_beside(at: Tensor) -> Tensor:
    """The points (M, D) at which `check_slope` takes the density around one, (D,)."""
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

    `values` (M,) are log densities at `points_beside` the first, in float64. If the gradient is wrong, `run` gives
    log densities (M,) and gradients (M, D) at points (M, D). `left` quotes a line that takes a value out of the graph;
    `flat` says that the likelihood is the same everywhere.
    """
    # A value that leaves the graph does so everywhere. A difference that underflows, such as that of two distribution
    # functions far out, does so at some points: a gradient that is right at another is that of the density.
    at = points[0]
    direction = _direction(at)
    if _is_right(values, slope, direction) is not False:
        return
    odd = []
    for name, site in sites.items():
        own = torch.zeros_like(direction)
        own[site.start : site.start + site.size] = direction[site.start : site.start + site.size]
        if _is_right(run(_difference_points(at, own))[0], slope, own) is False:
            odd.append(name)
    names, line = listed(map(repr, odd or sites)), left()
    if flat and not line:
        raise ModelError(FLAT)
    if not line and _right_elsewhere(run, torch.cat([points[1:], _nearby(at)]), direction):
        return
    raise ModelError(
        f"the gradient of the model's log density in {names} is not that of its values: "
        f"{line or 'something on the way to the density'} takes the value out of torch's graph, such as .item(), "
        ".detach(), float(), torch.tensor(value) or NumPy, so that no algorithm sees what the data say of it. Compute "
        "with torch's functions on the tensor itself"
    )


def steps(problem: RowDensities, z: Tensor) -> dict[str, Line]:
    """Latents along which the log density jumps, from z (D,), with the lines of the model that make steps of them."""
    generator = torch.Generator().manual_seed(6)
    at = torch.randperm(len(problem.rows[0]), generator=generator)[:FEW_ROWS]
    rows = tuple(leaf[at] for leaf in problem.rows)
    local = torch.randn(len(at), problem.local_dim, generator=generator, dtype=torch.float64)
    point = torch.cat([z.detach(), local.flatten()])
    return {
        name: line
        for name, line in _behind_cuts(problem, rows, point).items()
        if _jumps(problem, rows, point, _line_of(problem, name, len(at)))
    }


def said_of(found: Mapping[str, Line]) -> str:
    """A sentence on latents in steps, found by `steps`."""
    lines = listed(list(dict.fromkeys(map(line_text, found.values()))))
    return (
        f"the log density jumps along {listed(map(repr, found))}, at {lines}: rounding, comparing and counting make "
        "steps of a latent, and the gradients that all algorithms here follow see none of them"
    )


def no_derivative_error(problem: RowDensities, error: Exception) -> ModelError | None:
    """The error for an operation that torch cannot differentiate, from the one raised; None for other errors."""
    match = NO_DERIVATIVE.search(str(error))
    if match is None:
        return None
    rows = tuple(leaf[:2] for leaf in problem.rows)
    point = torch.zeros(problem.dim + len(rows[0]) * problem.local_dim, dtype=torch.float64, requires_grad=True)
    names = frozenset((match[1], CALLED.get(match[1], match[1])))
    found = cuts(problem.doubled(), *_parts(problem, point, rows), names)
    at = f" at {line_text(found[0].line)}" if found else ""
    cure = OF_STEPS if match[1] in STEP_OPERATIONS else "Write it by functions that have one"
    return ModelError(f"torch has no derivative of {match[1]}{at}, and all algorithms here follow gradients. {cure}")


def _behind_cuts(problem: RowDensities, rows: tuple[Tensor, ...], point: Tensor) -> dict[str, Line]:
    """Latents that go into an operation that lets no gradient through, and the first such line of each."""
    leaf, found = point.clone().requires_grad_(), dict[str, Line]()
    with torch.enable_grad():
        made = cuts(problem, *_parts(problem, leaf, rows))
    for cut in made:
        weights = torch.randn(cut.input.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((weights * cut.input).sum(), leaf, retain_graph=True, allow_unused=True)
        if slope is None:
            continue
        for name in (*problem.sites, *problem.layout.local):
            if bool((slope * _line_of(problem, name, len(rows[0]))).any()):
                found.setdefault(name, cut.line)
    return found


def _parts(problem: RowDensities, point: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The model's input at a point: z, the rows and their latents."""
    z, local = point.split([problem.dim, len(point) - problem.dim])
    return z, rows, local.reshape(len(rows[0]), problem.local_dim)


def _line_of(problem: RowDensities, name: str, count: int) -> Tensor:
    """A direction in which a latent moves alone, in the flat vector and the latents of `count` rows."""
    z = torch.zeros(problem.dim, dtype=torch.float64)
    local = torch.zeros(count, problem.local_dim, dtype=torch.float64)
    site = problem.sites.get(name) or problem.layout.local[name]
    own = z[site.start : site.start + site.size] if name in problem.sites else _columns(local, site)
    own += torch.randn(own.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
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
        places, where = torch.cat([start, end]).unique(return_inverse=True)  # an interval ends where another begins
        runs = [_run(problem, along, some) for some in places.split(count_in_memory(len(point)))]
        values, slopes = (torch.cat(part)[where].chunk(2) for part in zip(*runs, strict=True))
        best = torch.maximum(best, torch.cat(values).nan_to_num(nan=-torch.inf, posinf=-torch.inf).max())
        left = unexplained(end - start, values[1] - values[0], slopes[0], slopes[1]).nan_to_num(nan=0.0, posinf=0.0)
        most, which = torch.where(are_likely(values[0], values[1], best), left, 0.0).topk(NUM_CUT_INTERVALS)
        which = which[most > NEGLIGIBLE]
        if not len(which):
            return False
        start, end = start[which], end[which]
        if are_shortest(start, end):
            first, second = left.reshape(-1, PIECES_PER_INTERVAL).topk(2, 1).values.unbind(1)
            return bool(((first > NEGLIGIBLE) & (second < NEGLIGIBLE)).any())  # one step each; rounding makes many
        start, end = pieces(start, end)


def _run(problem: RowDensities, along: Callable[[Tensor], Any], places: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes at some places; NaN if the model cannot be run, as beyond the end of a table."""
    try:
        found: tuple[Tensor, Tensor] = problem.vmap(along)(places)
        return found
    except (*FAILURES, IndexError, OverflowError):
        if len(places) == 1:
            return torch.full_like(places, torch.nan), torch.full_like(places, torch.nan)
    values, slopes = zip(*(_run(problem, along, one) for one in places.split(1)), strict=True)
    return torch.cat(values), torch.cat(slopes)


def _right_elsewhere(run: Callable[[Tensor], tuple[Tensor, Tensor]], points: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is the density's at one of the points, along this direction."""
    beside_each = torch.cat([_difference_points(point, direction) for point in points])
    values, slopes = run(torch.cat([points, beside_each]))
    count = len(points)
    each = zip(values[count:].reshape(count, -1), slopes[:count], strict=True)
    return any(_is_right(differences, slope, direction) for differences, slope in each)


def _nearby(at: Tensor) -> Tensor:
    """Points around one, (4, D), at typical distances between unconstrained latents."""
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
    wrong = (first - slope @ direction).abs() > WRONG_GRADIENT_SHARE * size
    rounding = torch.finfo(values.dtype).eps * values.abs().max() / min(DIFFERENCE_STEPS)  # of a difference
    agree = ((first - second).abs() <= DIFFERENCE_TOLERANCE * size) & (rounding <= WRONG_GRADIENT_SHARE * size)
    decided = agree & values.isfinite().all() & slope.isfinite().all() & (size > 0)
    return not bool(wrong) if bool(decided) else None


class GradientCut(NamedTuple):
    """An operation of the model's that lets no gradient of its numbers through."""

    line: Line  # of the model
    input: Tensor  # of the operation, which has a gradient
    real: bool  # whether its output is real, and may still be followed in steps of its own


class _GradientCuts(CallWatcher):
    """Records lines of the model whose output has no gradient, or is named in `stepping`, unlike their input."""

    def __init__(self, stepping: Collection[str]) -> None:
        super().__init__()
        self.stepping = stepping
        self.found: list[GradientCut] = []

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        name = getattr(function, "__name__", "")
        made = name.endswith("_like") or name.startswith("new_")  # takes a shape alone
        real, counted = _is_cut(value), _is_counted(value) and name not in SHAPE_QUERIES
        if not made and (real or counted or name.strip("_") in self.stepping) and len(self.found) < MAX_CUTS:
            cut_input = next(
                (part for part in pytree.tree_leaves(args) if isinstance(part, Tensor) and part.requires_grad), None
            )
            line = None if _in_a_function() else current_line()
            if cut_input is not None and line is not None:
                self.found.append(GradientCut(line, cut_input, real))


class StepWatcher(CallWatcher):
    """Records whether a line of the model's own may make steps of a tensor that is mapped or differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        name = getattr(function, "__name__", "")
        counted = isinstance(value, float) or (_is_counted(value) and name not in SHAPE_QUERIES)
        if not self.found and (counted or name.strip("_") in STEP_OPERATIONS):
            taken = any(isinstance(part, Tensor) and is_wrapped(part) for part in pytree.tree_leaves(args))
            self.found = taken and current_line() is not None


def _in_a_function() -> bool:
    """Whether the running code is the forward part of a `torch.autograd.Function`, which has a gradient of its own."""
    frame: Any = sys._getframe(1)
    apply: Any = torch.autograd.Function.apply
    while frame is not None and frame.f_code is not run_model.__code__:
        if frame.f_code is apply.__func__.__code__:
            return True
        frame = frame.f_back
    return False


def _is_cut(value: Any) -> bool:
    """Whether these are real numbers without a gradient."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and not value.requires_grad
    return isinstance(value, float)


def _is_counted(value: Any) -> bool:
    """Whether these are whole numbers, or truth values."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() and not value.is_complex()
    return isinstance(value, int)


def cuts(
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, stepping: Collection[str] = STEP_OPERATIONS
) -> list[GradientCut]:
    """Operations of the model's own lines that let no gradient of z (D,) or `local` (n, d) through."""
    cutting = _GradientCuts(stepping)
    try:
        with torch.enable_grad(), cutting:
            problem.log_terms(z, rows, local)
    except (RuntimeError, ValueError, IndexError, TypeError):  # as far as it came
        pass
    return cutting.found


def line_leaving_graph(problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> str:
    """The model's line that takes a value out of torch's graph at z (D,), quoted; "" if no line of its own does."""
    found = cuts(problem, z.detach().clone().requires_grad_(), rows, local)
    return next((line_text(cut.line) for cut in found if cut.real), "")
