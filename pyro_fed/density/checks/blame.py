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
from pyro_fed.density.checks.plates import rows_as_values
from pyro_fed.density.checks.source import (
    CallWatcher,
    Line,
    Statements,
    as_arguments,
    current_line,
    held_data,
    held_sizes,
    line_of,
    line_text,
)
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.errors import ModelError, listed

#: The cures in every message on rows that do not factorise.
_CURE = (
    "Each row's term may depend on that row, its own latents and the latents outside the plate alone; standardise or "
    "summarise the data before the model, or in it by pf.shared('mean', lambda: x.mean(0)), make what is taken from "
    "other rows (a lag, a rank) a column before the model, or partition over an outer plate"
)


class Sample(NamedTuple):
    """The rows and points at which the model is examined."""

    at: Tensor  # (n,) row numbers
    rows: tuple[Any, ...]  # row tensors of these
    all_together: tuple[Any, ...]  # the same as the model takes them at once
    pairs: Tensor  # (R, 2) places in `at`
    weight: Tensor  # (R, 2) of each row in the gradient
    z: Tensor  # (P, D) points
    local: Tensor  # (P, n, d) latents of the rows there


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


def fails_on_some_rows_error(problem: RowDensities, error: Exception) -> ModelError:
    """The error for a model that runs on all rows, but not on a few of them."""
    bound = problem.bound
    return ModelError(
        f"the model runs on all {bound.num_rows} rows but fails on a client's part of them{line_of(error)}: "
        f"{str(error).splitlines()[0]}. {_why_not_on_some(problem)}"
    )


def _why_not_on_some(problem: RowDensities) -> str:
    """Possible causes: data that are not arguments, rows on another axis, sizes that are not those of the rows."""
    bound = problem.bound
    names = list(bound.arguments.names)
    held = held_data(bound.model, bound.num_rows)
    if held:
        return as_arguments(bound.model, names, held, bound.plate).strip()
    columns = [name for name, _, _ in bound.arguments.columns]
    said = _other_axis(bound.arguments, bound.num_rows)
    sizes = held_sizes(bound.model, bound.num_rows)
    if sizes:
        one = columns[0] if columns else "y"
        said += (
            f"{listed(sorted(set(sizes)))} is the number of all rows, {bound.num_rows}: write len({one}), which is a "
            "client's own at each. "
        )
    held_in = zip(names, bound.arguments.leaves, strict=True)
    lengths = {name: len(leaf) for name, leaf in held_in if isinstance(leaf, Tensor) and leaf.dim()}
    if not columns and lengths and not said:
        return (
            f"No argument is as long as plate '{bound.plate}', which has {bound.num_rows} rows: "
            f"{listed(f'{name!r} has {length}' for name, length in lengths.items())}. Where the model picks rows out "
            "of them (a filter, a lag such as y[1:], a half for each plate), do that before the model, and pass what "
            "is left as arguments"
        )
    return (
        f"{said}The arguments split by rows are {columns}, and plate '{bound.plate}' and every latent must "
        "take their sizes from them or be independent of them. Say which arguments are split with shard=(...); a "
        "number that is read from the rows' values, such as int(group.max()) + 1, is another one at each client: "
        "compute it before the model and pass it as an argument, or in the model by pf.shared('groups', lambda: ...). "
        f"{_nested_cure(problem)}".rstrip()
    )


def _other_axis(arguments: Arguments, num_rows: int) -> str:
    """The cure if an argument has its rows on another axis than the first; "" if none has."""
    for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True)):
        if isinstance(leaf, Tensor) and num_rows in leaf.shape and i not in arguments.split:
            axis = list(leaf.shape).index(num_rows)
            return (
                f"Argument '{name}' has shape {tuple(leaf.shape)}: where its rows are on dimension {axis}, say "
                f"shard={{'{name}': {axis}}}, or transpose it. "
            )
    return ""


# -- errors -----------------------------------------------------------------------------------------------------
def random_model_error(
    problem: RowDensities, sample: Sample, kind: str, name: str, before: Tensor, after: Tensor | None
) -> ModelError:
    """The error for a model whose log density is another one when it is run again."""
    found = blame(problem, sample.z[-1], sample.rows, sample.local[-1], sample.pairs[0], name, kind, again=True)
    figures = ""
    if after is not None:
        worst = (after - before).abs().nan_to_num(torch.inf).argmax()
        figures = f" ({float(before.flatten()[worst]):.6g}, then {float(after.flatten()[worst]):.6g})"
    return ModelError(
        f"{_site(problem, kind, name)} in a model that draws random numbers: run twice with the same values, it has "
        f"another log density{figures}, so that there is no posterior. {found.where}Give what is random a "
        "`pyro.sample` of its own, draw it once before the model and pass it as an argument, or switch it off (a "
        "module's `.eval()`, against dropout)"
    )


def not_factorising_error(
    problem: RowDensities,
    sample: Sample,
    kind: str,
    name: str,
    expected: Tensor | None,
    found: Tensor | None,
    off: Tensor | None,
    together: int | None = None,
) -> ModelError:
    """The error for a difference: the worst one of those that are `off`."""
    plate, together = problem.bound.plate, len(sample.at) if together is None else together
    mine, other, (pair, point, place) = _largest_difference(kind, expected, found, off)
    cause = blame(problem, sample.z[point], sample.rows, sample.local[point], sample.pairs[pair], name, kind, place)
    if kind == "outside":
        figures = f"{mine:.6g} with {together} rows, {other} with {sample.pairs.shape[1]}"
        return _outside_plate_error(problem, name, figures, cause.where)
    if kind == "slope":
        return ModelError(
            f"plate '{plate}' does not factorise over rows: the gradient of its log density is {mine:.6g} with "
            f"{together} rows and {other} in pairs of them, though the densities agree. {cause.where}{_CURE}"
        )
    row = int(sample.at[sample.pairs[pair, place]])
    beside = "beside one other" if len(sample.pairs[pair].unique()) > 1 else "by itself"
    cure = _divided_by_rows(expected, found, off, together / sample.pairs.shape[1])
    cure = cure or rows_as_values(problem.bound, name) or _CURE
    return ModelError(
        f"{_site(problem, kind, name)} in plate '{plate}' does not factorise over rows: row {row} has log density "
        f"{mine:.6g} beside {together} rows and {other} {beside}. {cause.where}{cure}"
    )


def _largest_difference(
    kind: str, expected: Tensor | None, found: Tensor | None, off: Tensor | None
) -> tuple[float, str, tuple[int, int, int]]:
    """The largest difference: the value expected there, the one found as text, and its pair, point and place."""
    if found is None or expected is None or off is None:
        return torch.nan if expected is None else float(expected.flatten()[0]), "none", (0, 0, 0)
    apart = torch.where(off, (found - expected).abs().nan_to_num(torch.inf), -1.0)
    index = [int(i) for i in torch.unravel_index(apart.argmax(), apart.shape)]
    pair, point, place = [*index, 0][:3] if kind != "slope" else (0, index[0], 0)
    return float(expected[tuple(index)]), f"{float(found[tuple(index)]):.6g}", (pair, point, place)


def _outside_plate_error(problem: RowDensities, name: str, figures: str, where: str) -> ModelError:
    """The error for a site outside the plate whose density changes with the rows."""
    plate = problem.bound.plate
    if name and name not in problem.layout.latents:
        return ModelError(
            f"observed site '{name}' is outside plate '{plate}', but its density changes with the rows of data "
            f"({figures}): it cannot be split over the clients. {where}Move it inside "
            f"`with pyro.plate('{plate}', ...)`, or say with shard=(...) which arguments are split by rows"
        )
    what = f"the prior of site '{name}'" if name else "the support of a latent site"
    return ModelError(
        f"{what}, outside plate '{plate}', changes with the rows of data ({figures}). {where}Compute "
        "summaries of the data once, before the model, and pass them as shared arguments, or in the model by "
        "pf.shared('name', lambda: ...), such as pf.shared('n', len(x)); or exclude an argument "
        "that is not split by rows with shard=(...)"
    )


def _divided_by_rows(expected: Tensor | None, found: Tensor | None, off: Tensor | None, fewer: float) -> str:
    """A sentence on densities that are inversely proportional to the number of rows; "" if they are not."""
    if expected is None or found is None or off is None:
        return ""
    times = found[off] / expected[off]
    if not bool(((times / fewer - 1).abs() < SAME_SHARE).all()):
        return ""
    return (
        "Each row's density is divided by the number of rows, as by a scale of 1 / len(x), which is another one at "
        "each client: take the number of all rows, as an argument or by pf.shared('n', len(x))"
    )


def _site(problem: RowDensities, kind: str, name: str) -> str:
    if not name:
        return "the support of a latent site"
    latent = name in problem.layout.latents or name in problem.layout.local
    return f"{'latent' if latent else 'observed'} site '{name}'"


def _nested_cure(problem: RowDensities) -> str:
    nested = ", ".join(f"'{name}'" for name in problem.bound.arguments.nested_plates)
    if not nested:
        return ""
    plate = problem.bound.plate
    return f"A row of {nested} may belong to one element of '{plate}' alone, by the argument that rows= names. "


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
        if line is not None:
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
