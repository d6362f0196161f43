"""The cause if a model does not split: the first line that combines rows, and the argument through which it does.

The model is run on all rows and on a few of them, and each result of a torch function that the model's own lines call
is recorded. The first result that differs for the common rows, or that has no axis of rows and differs, combines rows:
`x.mean(0)`, `torch.arange(len(x))`. Runs with other values in an argument's other rows identify the argument.

This is done only for refused models, to describe the cause; no decision depends on it.
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
from pyro_fed.errors import ModelError, listed

#: The cures in every message on rows that do not factorise.
_CURE = (
    "Each row's term may depend only on that row, its own latents and the latents outside the plate; standardise or "
    "summarise the data before the model, or in it by pf.shared('mean', lambda: x.mean(0)), make values from "
    "other rows (a lag, a rank) a column before the model, or partition over an outer plate"
)


class Sample(NamedTuple):
    """The rows and points of the checks."""

    at: Tensor  # (n,) row numbers
    rows: tuple[Any, ...]  # row tensors of these
    all_together: tuple[Any, ...]  # these rows in one call of the model
    pairs: Tensor  # (R, 2) places in `at`
    weight: Tensor  # (R, 2) weight of each row in the gradient
    z: Tensor  # (P, D) points
    local: Tensor  # (P, n, d) latents of the rows there


class Suspect(NamedTuple):
    """The known facts about the cause."""

    line: Line | None  # file and number of the line that combines rows; None if unknown
    arguments: tuple[str, ...]  # names of the arguments through which other rows enter
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
        f"{str(error).splitlines()[0]}. {_causes_of_failure(problem)}"
    )


def _causes_of_failure(problem: RowDensities) -> str:
    """Possible causes: data that are not arguments, rows on another axis, sizes that differ from the number of rows."""
    bound = problem.bound
    names = list(bound.arguments.names)
    held_values = held_data(bound.model, bound.num_rows)
    if held_values:
        return as_arguments(bound.model, names, held_values, bound.plate).strip()
    columns = [name for name, _, _ in bound.arguments.columns]
    axis_cure = bound.arguments.other_axis_cure(bound.num_rows)
    sizes = held_sizes(bound.model, bound.num_rows)
    if sizes:
        column = columns[0] if columns else "y"
        axis_cure += (
            f"{listed(sorted(set(sizes)))} is the number of all rows, {bound.num_rows}: write len({column}), which is "
            "each client's own number. "
        )
    leaves_by_name = zip(names, bound.arguments.leaves, strict=True)
    lengths = {name: len(leaf) for name, leaf in leaves_by_name if isinstance(leaf, Tensor) and leaf.dim()}
    if not columns and lengths and not axis_cure:
        return (
            f"No argument is as long as plate '{bound.plate}', which has {bound.num_rows} rows: "
            f"{listed(f'{name!r} has {length}' for name, length in lengths.items())}. If the model selects rows "
            "(a filter, a lag such as y[1:], a half for each plate), do this before the model, and pass the "
            "selected rows as arguments"
        )
    return (
        f"{axis_cure}The arguments split by rows are {columns}, and plate '{bound.plate}' and every latent must "
        "take their sizes from them or be independent of them. Name the arguments that are split by shard=(...); a "
        "number computed from the rows' values, such as int(group.max()) + 1, differs between clients: "
        "compute it before the model and pass it as an argument, or in the model by pf.shared('groups', lambda: ...). "
        f"{_nested_cure(problem)}".rstrip()
    )


# -- errors -----------------------------------------------------------------------------------------------------
def random_model_error(
    problem: RowDensities, sample: Sample, kind: str, name: str, before: Tensor, after: Tensor | None
) -> ModelError:
    """The error for a model whose log density differs between two equal runs."""
    suspect = blame(problem, sample.z[-1], sample.rows, sample.local[-1], sample.pairs[0], name, kind, again=True)
    figures = ""
    if after is not None:
        worst = (after - before).abs().nan_to_num(torch.inf).argmax()
        figures = f" ({float(before.flatten()[worst]):.6g}, then {float(after.flatten()[worst]):.6g})"
    return ModelError(
        f"{_site_text(problem, kind, name)} in a model that draws random numbers: two runs with the same values have "
        f"different log densities{figures}, so that there is no posterior. {suspect.where}Give random quantities a "
        "`pyro.sample`, draw them once before the model and pass them as an argument, or switch them off (a "
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
    """The error for the largest difference among the entries that are `off`."""
    plate, together = problem.bound.plate, len(sample.at) if together is None else together
    expected_value, other_value, (pair, point, place) = _largest_difference(kind, expected, found, off)
    cause = blame(problem, sample.z[point], sample.rows, sample.local[point], sample.pairs[pair], name, kind, place)
    if kind == "outside":
        figures = f"{expected_value:.6g} with {together} rows, {other_value} with {sample.pairs.shape[1]}"
        return _outside_plate_error(problem, name, figures, cause.where)
    if kind == "slope":
        return ModelError(
            f"plate '{plate}' does not factorise over rows: the gradient of its log density is {expected_value:.6g} "
            f"with {together} rows and {other_value} in pairs of them, though the densities agree. {cause.where}{_CURE}"
        )
    row = int(sample.at[sample.pairs[pair, place]])
    company = "beside one other" if len(sample.pairs[pair].unique()) > 1 else "by itself"
    cure = _divided_by_rows(expected, found, off, together / sample.pairs.shape[1])
    cure = cure or rows_as_values(problem.bound, name) or _CURE
    return ModelError(
        f"{_site_text(problem, kind, name)} in plate '{plate}' does not factorise over rows: row {row} has log density "
        f"{expected_value:.6g} beside {together} rows and {other_value} {company}. {cause.where}{cure}"
    )


def _largest_difference(
    kind: str, expected: Tensor | None, found: Tensor | None, off: Tensor | None
) -> tuple[float, str, tuple[int, int, int]]:
    """The largest difference: the expected value, the other value as text, and its pair, point and place."""
    if found is None or expected is None or off is None:
        return torch.nan if expected is None else float(expected.flatten()[0]), "none", (0, 0, 0)
    distance = torch.where(off, (found - expected).abs().nan_to_num(torch.inf), -1.0)
    index = [int(i) for i in torch.unravel_index(distance.argmax(), distance.shape)]
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


def _divided_by_rows(expected: Tensor | None, found: Tensor | None, off: Tensor | None, row_ratio: float) -> str:
    """A cure for densities that are inversely proportional to the number of rows; "" for other densities."""
    if expected is None or found is None or off is None:
        return ""
    ratios = found[off] / expected[off]
    if not bool(((ratios / row_ratio - 1).abs() < SAME_SHARE).all()):
        return ""
    return (
        "Each row's density is divided by the number of rows, such as by a scale of 1 / len(x), which differs between "
        "clients: use the number of all rows, as an argument or by pf.shared('n', len(x))"
    )


def _site_text(problem: RowDensities, kind: str, name: str) -> str:
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
    """The cause of a difference at z (D,), if it can be identified.

    `few` (m,) are places of some of `rows`, with latents `local` (n, d), whose densities differ from those among all
    rows; `place` is one of them. `kind` is "inside" or "outside" the plate. `again` compares two equal runs, to
    identify random results.
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
    arguments = () if again else _arguments_of_other_rows(problem, z, rows, local, target, name, kind)
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
    except (RuntimeError, ValueError, IndexError, TypeError):  # a model that runs under vmap may fail without it
        return None
    return recording


def _differ(one: Any, two: Any, at: tuple[Tensor, Tensor], counts: tuple[int, int]) -> bool:
    """Whether two results differ in their common rows."""
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


def _arguments_of_other_rows(
    problem: RowDensities, z: Tensor, rows: tuple[Any, ...], local: Tensor, target: int, name: str, kind: str
) -> tuple[str, ...]:
    """Names of the arguments whose values in other rows change this row's density, or a density outside the plate."""
    names = [label for label, nested, _ in problem.bound.arguments.columns if nested is None]
    first = 1 if problem.bound.arguments.nested_plates else 0  # the groups' numbers stand before the arguments

    def density(changed_rows: tuple[Any, ...]) -> Tensor | None:
        try:
            outside, inside = problem.log_terms(z, changed_rows, local)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        terms = inside.get(name) if kind == "inside" else outside.get(name)
        return None if terms is None else terms[target] if kind == "inside" else terms

    density_before, names_of_causes = density(rows), []
    places = torch.arange(len(rows[0]))
    resampled = torch.randint(len(places), places.shape, generator=torch.Generator().manual_seed(4))
    index = torch.where(places == target, places, resampled)
    for i, label in enumerate(names, first):
        changed_density = density(tuple(leaf[index] if j == i else leaf for j, leaf in enumerate(rows)))
        if density_before is None or changed_density is None:
            continue
        if not bool((density_before - changed_density).abs() <= SAME_SHARE * (1 + density_before.abs())) and not bool(
            density_before == changed_density
        ):
            names_of_causes.append(label)
    return tuple(names_of_causes)
