"""Why a model does not split: the line of it where rows first meet, and the argument through which they do.

The model is run twice, on all rows and on a few of them, and every result of a torch function that is called from the
model's own lines is recorded. For the rows of both runs, the first result that differs, or that has no axis of rows and
differs, is where the rows have met: `x.mean(0)`, `torch.arange(len(x))`. The argument follows from runs in which that
argument's other rows have other values.

This is done only for models that are refused, to describe the cause; it decides nothing.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.running.handlers import run_model

#: Paths of code that is not the user's.
_FOREIGN = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, pyro.__file__, os.path.join(os.path.dirname(__file__), "..", "..", "x"))
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
#: The most results that are recorded.
MAX_RESULTS = 100_000
#: Longest line that is quoted.
MAX_LINE_LENGTH = 80
#: Operations that turn their input into steps, and have a gradient of zero; without underscores.
STEPS = frozenset(
    (
        *("floor", "ceil", "round", "trunc", "fix", "sign", "sgn", "frac", "heaviside", "floor_divide", "floordiv"),
        *("rfloordiv", "remainder", "mod", "rmod", "fmod"),
    )
)
#: Properties of a tensor that do not depend on its numbers.
ASKS = frozenset(
    ("dim", "size", "numel", "nelement", "is_floating_point", "is_complex", "__len__", "__get__", "stride")
)
#: The most cuts that are recorded.
MAX_CUTS = 64

Line = tuple[str, int]


class Suspect(NamedTuple):
    """The known facts about the cause.

    Attributes:
        line: file and number, None if no line of the model's own shows it.
        arguments: names of arguments through which other rows come in.
        statement: file and number of the site's `pyro.sample`.
    """

    line: Line | None
    arguments: tuple[str, ...]
    statement: Line | None

    @property
    def where(self) -> str:
        """A sentence and a space, or ""."""
        through = ", ".join(f"'{name}'" for name in self.arguments)
        through = f" through other rows' {through}" if through else ""
        if self.line is not None:
            return f"The likely cause{through} is {line_text(self.line)}. "
        if self.statement is not None:
            return (
                f"The site's statement{', reached' + through + ',' if through else ''} is {line_text(self.statement)}. "
            )
        return ""


def line_text(line: Line) -> str:
    """The text and the place of a line (file and number): `x - x.mean(0)` (model.py:12)."""
    text = linecache.getline(*line).split("  #")[0].strip()
    place = f"{os.path.basename(line[0])}:{line[1]}"
    return f"`{text[:MAX_LINE_LENGTH]}` ({place})" if text else place


def line_of(error: BaseException) -> str:
    """The model's line that raised an error, after a space; "" if it is not in the model."""
    trace: TracebackType | None = error.__traceback__
    inside, found = False, None
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = inside or code is run_model.__code__
        if inside and is_users(code):
            found = code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return f" at {line_text(found)}" if found else ""


def blame(
    problem: RowDensities,
    z: Tensor,
    rows: tuple[Any, ...],
    local: Tensor,
    few: Tensor,
    name: str,
    kind: str,
    place: int = 0,
    again: bool = False,
) -> Suspect:
    """The cause of a difference, as far as it can be found.

    Args:
        problem: the model's densities.
        z: (D,) a point at which the rows differ.
        rows: row tensors, each (n, ...).
        local: (n, d) latents of the rows.
        few: (m,) places of some of the rows, whose densities differ from those among all rows.
        name: name of the site that differs.
        kind: "inside" or "outside" the plate.
        place: which of the few differs.
        again: compare a run with its repetition, to find random results.
    """
    everything = torch.arange(len(rows[0]))
    first = _record_run(problem, z, rows, local, everything)
    other = _record_run(problem, z, rows, local, everything if again else few)
    if first is None or other is None:
        return Suspect(None, (), None)
    at = (everything, everything) if again else (few[place : place + 1], torch.tensor([place]))
    counts = (len(everything), len(everything) if again else len(few))
    line = next(
        (
            one.line
            for one, two in zip(first.results, other.results, strict=False)
            if one.function is two.function and _differ(one.value, two.value, at, counts)
        ),
        None,
    )
    target = int(few[place])
    arguments = () if again else _arguments(problem, z, rows, local, target, name, kind)
    return Suspect(line, arguments, first.statements.get(name))


class _Result(NamedTuple):
    function: Any
    line: Line
    value: Any


class _Recording(TorchFunctionMode):
    """Records the results of torch functions that the model's own lines call, and the line of each site."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_Result] = []
        self.statements: dict[str, Line] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        line = current_line()
        if line is not None and len(self.results) < MAX_RESULTS:
            self.results.append(_Result(func, line, _detached_copy(value)))
        return value


class Statements(Messenger):
    """Records the line of each `pyro.sample` in `statements`, by the site's name."""

    def __init__(self, statements: dict[str, Line]) -> None:
        super().__init__()
        self.statements = statements

    def _pyro_sample(self, msg: Any) -> None:
        line = current_line()
        if line is not None:
            self.statements[msg["name"]] = line


class GradientCut(NamedTuple):
    """An operation of the model's that lets no gradient of its numbers through.

    Attributes:
        line: of the model.
        takes: its input, which has a gradient.
        real: whether its output is real, and may still be followed in steps of its own.
    """

    line: Line
    takes: Tensor
    real: bool


class _Cutting(TorchFunctionMode):
    """Records the model's own lines whose output has no gradient although their input has one.

    `stepping` names operations that count as such although their output has a gradient.
    """

    def __init__(self, stepping: Collection[str]) -> None:
        super().__init__()
        self.stepping = stepping
        self.found: list[GradientCut] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        made = name.endswith("_like") or name.startswith("new_")  # takes a shape alone
        real, counted = _is_cut(value), _is_counted(value) and name not in ASKS
        if not made and (real or counted or name.strip("_") in self.stepping) and len(self.found) < MAX_CUTS:
            takes = next((part for part in pytree.tree_leaves(args) if _has_gradient(part)), None)
            line = None if _in_a_function() else current_line()
            if takes is not None and line is not None:
                self.found.append(GradientCut(line, takes, real))
        return value


class Stepping(TorchFunctionMode):
    """Records whether a line of the model's own may make steps of a tensor that is mapped or differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        counted = isinstance(value, float) or (_is_counted(value) and name not in ASKS)
        if not self.found and (counted or name.strip("_") in STEPS):
            taken = any(isinstance(part, Tensor) and is_wrapped(part) for part in pytree.tree_leaves(args))
            self.found = taken and current_line() is not None
        return value


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _in_a_function() -> bool:
    """Whether the running code is the forward part of a `torch.autograd.Function`, which has a gradient of its own."""
    frame: Any = sys._getframe(2)
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
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, stepping: Collection[str] = STEPS
) -> list[GradientCut]:
    """Operations of the model's own lines that let no gradient of z or the rows' latents through.

    Args:
        problem: the model's densities.
        z: (D,) a point; in a graph that requires its gradient.
        rows: row tensors, each (n, ...).
        local: (n, d) latents of the rows.
        stepping: names of operations that count as such although their output has a gradient.
    """
    cutting = _Cutting(stepping)
    try:
        with torch.enable_grad(), cutting:
            problem.log_terms(z, rows, local)
    except (RuntimeError, ValueError, IndexError, TypeError):  # as far as it came
        pass
    return cutting.found


def left_graph(problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> Line | None:
    """The line of the model that takes a value out of torch's graph at z (D,); None if no line of its own does.

    `rows` are row tensors (n, ...), `local` their latents (n, d).
    """
    found = cuts(problem, z.detach().clone().requires_grad_(), rows, local)
    return next((cut.line for cut in found if cut.real), None)


def _detached_copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return tuple(_detached_copy(part) for part in value) if isinstance(value, (list, tuple)) else None


def current_line() -> Line | None:
    """The innermost line of the model itself that is running; None outside the model's run."""
    frame: Any = sys._getframe(1)
    found: Line | None = None
    while frame is not None and frame.f_code is not run_model.__code__:
        if found is None and is_users(frame.f_code):
            found = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return found if frame is not None else None


def is_users(code: CodeType) -> bool:
    """Whether this is code of the model's own, and not of torch, Pyro, the standard library or this package."""
    return is_users_file(code.co_filename)


def is_users_file(path: str) -> bool:
    """Whether a file at this path is the user's, as `is_users`."""
    if path.startswith(_FOREIGN):
        return False
    return not path.startswith(_STANDARD) or "site-packages" in path


def _record_run(
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, at: Tensor
) -> _Recording | None:
    recording = _Recording()
    try:
        with recording, Statements(recording.statements):
            problem.log_terms(z, tuple(leaf[at] for leaf in rows), local[at])
    except (RuntimeError, ValueError, IndexError, TypeError):  # it ran mapped before, and may not run unmapped
        return None
    return recording


def _differ(one: Any, two: Any, at: tuple[Tensor, Tensor], counts: tuple[int, int]) -> bool:
    """Whether two results differ in the rows that both have."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        return any(_differ(a, b, at, counts) for a, b in zip(one, two, strict=False))
    if not isinstance(one, Tensor) or not isinstance(two, Tensor) or one.dim() != two.dim():
        return False
    axes = [axis for axis in range(one.dim()) if one.shape[axis] == counts[0] and two.shape[axis] == counts[1]]
    if axes:
        one, two = one.index_select(axes[0], at[0]), two.index_select(axes[0], at[1])
    if one.shape != two.shape:
        return not (len(axes) or one.numel() == 0)
    same = (one == two) | (one.isnan() & two.isnan()) if one.is_floating_point() else one == two
    if one.is_floating_point():
        same |= (one - two).abs() <= SAME_SHARE * (1 + torch.maximum(one.abs(), two.abs()))
    return not bool(same.all())


def _arguments(
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, target: int, name: str, kind: str
) -> tuple[str, ...]:
    """Names of the arguments whose values in other rows change this row's density, or that outside the plate."""
    names = [label for label, nested, _ in problem.bound.arguments.columns if nested is None]
    first = 1 if problem.bound.arguments.nested_plates else 0  # the groups' numbers stand before the arguments

    def density(of: tuple[Any, ...]) -> Tensor | None:
        try:
            outside, inside = problem.log_terms(z, of, local)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        terms = inside.get(name) if kind == "inside" else outside.get(name)
        return None if terms is None else terms[target] if kind == "inside" else terms

    before, found = density(rows), []
    others = torch.arange(len(rows[0]))
    resampled = torch.randint(len(others), others.shape, generator=torch.Generator().manual_seed(4))
    index = torch.where(others == target, others, resampled)
    for i, label in enumerate(names, first):
        changed = density(tuple(leaf[index] if j == i else leaf for j, leaf in enumerate(rows)))
        if before is None or changed is None:
            continue
        if not bool((before - changed).abs() <= SAME_SHARE * (1 + before.abs())) and not bool(before == changed):
            found.append(label)
    return tuple(found)
