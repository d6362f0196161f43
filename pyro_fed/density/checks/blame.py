"""Why a model does not split: the line of it where rows first meet, and the argument through which they do.

The model is run twice, on all rows and on a few of them, and every result of a torch function that is called from the
model's own lines is recorded. For the rows of both runs, the first result that differs, or that has no axis of rows and
differs, is where the rows have met: `x.mean(0)`, `torch.arange(len(x))`. The argument follows from runs in which that
argument's other rows have other values.

This is done only for models that are refused, to describe the cause; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.source import CallWatcher, Line, Statements, current_line, line_text

#: The most results that are recorded.
MAX_RESULTS = 100_000


class Suspect(NamedTuple):
    """The known facts about the cause."""

    line: Line | None  # file and number, None if no line of the model's own shows it
    arguments: tuple[str, ...]  # names of arguments through which other rows come in
    statement: Line | None  # file and number of the site's `pyro.sample`

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
    """The cause of a difference at z (D,), as far as it can be found.

    `few` (m,) are places of some of `rows`, with latents `local` (n, d), that differ among themselves from among all
    rows, `place` one of them. `kind` is "inside" or "outside" the plate. `again` compares a run with its repetition,
    to find random results.
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


class _Recording(CallWatcher):
    """Records the results of torch functions that the model's own lines call, and the line of each site."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_Result] = []
        self.statements: dict[str, Line] = {}

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        line = current_line()
        if line is not None and len(self.results) < MAX_RESULTS:
            self.results.append(_Result(function, line, _detached_copy(value)))


def _detached_copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return tuple(_detached_copy(part) for part in value) if isinstance(value, (list, tuple)) else None


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
