"""Warnings of mistakes in the data that no model notices: codes for missing values, duplicate rows, labels.

Each such value is finite and in the support, and moves a posterior by many SDs without an error. All lead to a warning
only, since they may be intended. For a number far from all others the model's own densities decide whether it uses the
value as a number (`taken_as_a_number`): 1e9 as the upper bound of an interval without one, or -999 in a row that the
model masks, is harmless. The log density of the value's row is computed at points θ, with v, 2v, and a value next to v:

    it is the same with v and 2v                   v means only that it is large, or is not used
    its differences between points jump from v     the model tests for v itself, `x == -999`
      to the value next to it
    else                                           v is used as a number
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.conventions.names import as_it_looks
from pyro_fed.density.checks.lookups import num_elements
from pyro_fed.density.checks.points import FEW_ROWS, NUM_DRAWS, ROWS_TOGETHER, points_within_radius
from pyro_fed.density.problem import Problem
from pyro_fed.density.rounding import rounding_of
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.files import blocks, picked
from pyro_fed.errors import listed, warn_user
from pyro_fed.ops.entries import evenly

#: A value is far away if its gap to the others is more than this multiple of their range.
FAR_VALUE_RANGES = 10.0
#: Above this ratio, times √N, a value is so large that its square absorbs the others' sum of squares in float64.
OVERWHELMING = torch.finfo(torch.float64).eps ** -0.5
#: Duplicate rows are reported if a client has at least this number and this share of them.
MIN_DUPLICATE_ROWS, MIN_DUPLICATE_SHARE = 5, 0.1
#: A column identifies rows if this share of the distinct rows differ in it: it is a measurement and not a code.
DISTINCT_COLUMN_SHARE = 0.9
#: All of a client's rows count m times if each occurs m times, or a multiple of it. With this number of distinct rows
#: the probability of that by chance is one in a million, whatever the columns.
MIN_DISTINCT_ROWS = 20
#: Rows on a grid are duplicates if they are more than this multiple of the number that chance makes equal.
DUPLICATES_OVER_CHANCE = 2.0
#: Numbers are on a grid if they are nearer to it than this share of its spacing: float32 rounds them.
GRID_TOLERANCE = 0.01
#: The most findings of one kind that a warning lists.
MAX_LISTED = 3
#: If differences change by more than this share of their size from a value to the next, they jump there.
LARGEST_SLOPE_CHANGE = 0.1


def warn_of_odd_data(
    problem: Problem, clients: Sequence[Tensor], names: Sequence[str], local_numbering: bool = False
) -> None:
    """Warn of labels that differ by spelling or are too few, of values far from all others, and of duplicate rows."""
    arguments = problem.arguments
    _warn_of_spellings(arguments)
    _warn_of_labels_without_rows(problem)
    if arguments.nested_plates or not arguments.num_rows:
        return
    found = []
    for number, (name, _, leaf) in enumerate(arguments.columns):
        if leaf.dim() and leaf.numel() and name not in arguments.labels and leaf.dtype != torch.bool:
            for column, value, low, high in _far_values(leaf):
                at = (leaf.flatten(1)[:, column] if leaf.dim() > 1 else leaf) == value
                rows = at.nonzero()[:, 0]
                if not taken_as_a_number(problem, number, column, rows):
                    continue
                whose = [name for name, own in zip(names, clients, strict=True) if bool(torch.isin(rows, own).any())]
                first = next((own for own in clients if local_numbering and bool((own == rows[0]).any())), None)
                place = int(rows[0]) if first is None else int((first == rows[0]).nonzero()[0])
                part = f", column {column}," if leaf.dim() > 1 else ""
                found.append(
                    f"argument '{name}'{part} is {value:g} in {len(rows)} row(s) of client(s) {listed(whose)}, first "
                    f"in row {place}, and between {low:g} and {high:g} everywhere else"
                )
    _warn_of_all(
        found,
        ". If this value stands for a missing one, or is a mistake, it outweighs the other rows: drop these rows, or "
        "let the "
        "model handle them as NaN",
    )
    _warn_of_rows_twice(arguments, clients, names)


def _warn_of_spellings(arguments: Arguments) -> None:
    """Warn of labels that differ only by capitals and spaces: they count as different categories."""
    found = []
    for name, labels in arguments.labels.items():
        spelt: dict[str, list[str]] = {}
        for label in labels:
            if isinstance(label, str):
                spelt.setdefault(as_it_looks(label).casefold(), []).append(repr(label))
        found += [f"argument '{name}' has {' and '.join(alike)}" for alike in spelt.values() if len(alike) > 1]
    _warn_of_all(
        found,
        ": labels that differ only by capitals and spaces are different categories. If they are meant to be one, "
        "give them one spelling, column.str.strip().str.casefold()",
    )


def _warn_of_labels_without_rows(problem: Problem) -> None:
    """Warn of labels that index more elements than there are labels: the codes then leave out the last elements."""
    arguments = problem.arguments
    names = list(arguments.labels)
    if not names:
        return
    columns = [arguments.leaves[arguments.names.index(name)] for name in names]
    found = []
    for name, size in zip(names, num_elements(problem.bound, columns), strict=True):
        labels = arguments.labels[name]
        if size > len(labels):
            found.append(
                f"argument '{name}' has {len(labels)} labels, [{listed(labels)}], and the model picks by it one of "
                f"{size} elements: the labels are numbers 0 to {len(labels) - 1}, whichever of the {size} have no rows"
            )
    _warn_of_all(found, ". Name all of them, in their order: pandas.Categorical(column, categories=[...])")


def _warn_of_all(found: Sequence[str], meaning: str) -> None:
    """One warning of several mistakes of one kind, if there are any, with what they mean."""
    if found:
        more = f"; and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        warn_user(f"{'; '.join(found[:MAX_LISTED])}{more}{meaning}")


def _far_values(leaf: Tensor) -> Iterator[tuple[int, float, float, float]]:
    """Column, value and the range of all others, for each smallest or largest value that is far from the others."""
    flat = leaf.reshape(len(leaf), -1)
    suspects = _may_be_far(flat).nonzero()[:, 0]
    ends = [_ends(block[:, suspects].double()) for block in blocks(flat) if len(suspects)]
    for end in reversed(_ends_of_all(ends)) if ends else ():
        count, others = torch.zeros_like(end), []
        for block in blocks(flat):
            values = block[:, suspects].double()
            count += (values == end).sum(0)
            others.append(_ends(torch.where(values == end, torch.nan, values)))
        low, high = _ends_of_all(others)
        width, gap = high - low, torch.minimum((end - low).abs(), (end - high).abs())
        recurs = (count > 1) & (2 * count < len(flat)) & (width > 0) & (gap > FAR_VALUE_RANGES * width)
        size = torch.maximum(low.abs(), high.abs())  # finite but for columns of one value, of width -inf
        outweighs = (width > 0) & (end.abs() > OVERWHELMING * len(flat) ** 0.5 * size)
        for place in (recurs | outweighs).nonzero()[:, 0].tolist():
            yield int(suspects[place]), float(end[place]), float(low[place]), float(high[place])


def _may_be_far(flat: Tensor) -> Tensor:
    """Which columns (C,) of (N, C) may have a far value, as a few rows show that most have none."""
    ends = [_ends_or_nan(block) for block in blocks(flat)]
    some = picked(flat, evenly(len(flat), ROWS_TOGETHER)).double()
    cleared = torch.ones(flat.shape[1], dtype=torch.bool)
    for end in _ends_of_all(ends):
        low, high = _ends(torch.where(some == end, torch.nan, some))
        gap, size = torch.minimum((end - low).abs(), (end - high).abs()), torch.maximum(low.abs(), high.abs())
        cleared &= (gap <= FAR_VALUE_RANGES * (high - low)) & (end.abs() <= OVERWHELMING * len(flat) ** 0.5 * size)
    return ~cleared  # and none where an end is not a number


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of each column's finite values, (C,): inf and -inf without any."""
    finite = values.isfinite()
    return torch.where(finite, values, torch.inf).amin(0), torch.where(finite, values, -torch.inf).amax(0)


def _ends_of_all(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The smallest and the largest of each column's values, (C,), from those of several blocks."""
    lowest, highest = zip(*parts, strict=True)
    return reduce(torch.minimum, lowest), reduce(torch.maximum, highest)


def _ends_or_nan(block: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each column, (C,), NaN where there is one."""
    values = block.numpy()  # three times as fast as torch along the rows
    return torch.as_tensor(values.min(0)).double(), torch.as_tensor(values.max(0)).double()


def _warn_of_rows_twice(arguments: Arguments, clients: Sequence[Tensor], names: Sequence[str]) -> None:
    columns = [leaf.reshape(len(leaf), -1) for _, _, leaf in arguments.columns if leaf.dim() and leaf.numel()]
    keys = _row_keys(columns) if columns else torch.empty(0)
    ordered = keys.sort().values
    if not bool((ordered[1:] == ordered[:-1]).any()):
        return
    _, group, count = keys.unique(return_inverse=True, return_counts=True)
    twice = count[group] > 1
    if int(twice.sum()) < MIN_DUPLICATE_ROWS:
        return
    times = [_repeat_count(group[rows]) for rows in clients]
    whole = [f"client {name} has every row {n} times" for name, n in zip(names, times, strict=True) if n > 1]
    if whole:
        _warn_of_all(
            whole,
            ", equal in every column: each counts as often, and the posterior is too narrow if these are the same "
            "cases. Leave the copies out (a table joined twice?)",
        )
        return
    if not _has_measurements(columns, group, len(count), int(twice.sum())):
        return
    sizes = [(int(twice[rows].sum()), k) for k, rows in enumerate(clients) if len(rows)]
    many = [(n, k) for n, k in sizes if n >= MIN_DUPLICATE_ROWS and n >= MIN_DUPLICATE_SHARE * len(clients[k])]
    if not many:
        return
    number, k = max(many, key=lambda one: one[0] / len(clients[one[1]]))
    own = group[clients[k]]
    mine = own[twice[clients[k]]]
    others = [
        names[j]
        for j, rows in enumerate(clients)
        # clients with the same rows in the same order have a warning of their own, `warn_duplicates`
        if j != k and bool(torch.isin(group[rows], mine).any()) and not torch.equal(group[rows], own)
    ]
    inside = len(own) - len(own.unique())
    if not others and not inside:
        return
    where = [f"at client(s) {listed(others)}"] * bool(others) + ["twice at that client"] * bool(inside)
    warn_user(
        f"{number} of the {len(own)} rows of client {names[k]} occur more than once, {' and '.join(where)}, equal in "
        "every column: each counts as often. Leave the copies out if they are the same cases"
    )


def _row_keys(columns: Sequence[Tensor]) -> Tensor:
    """A key of each row, (N,): equal rows have equal keys, different rows differ except with probability 1e-15."""
    generator = torch.Generator().manual_seed(0)
    key = torch.zeros(len(columns[0]), dtype=torch.float64)
    for leaf in columns:
        factors = torch.rand(leaf.shape[1], generator=generator, dtype=torch.float64) + 0.5
        first = 0
        for part in blocks(leaf):
            key[first : first + len(part)] += (part.double() * factors).sum(1)
            first += len(part)  # NaN equals nothing: missing values may differ
    return key


def _repeat_count(rows: Tensor) -> int:
    """The greatest common divisor of the counts of a client's distinct rows; 1 if it has too few distinct rows."""
    if len(rows) < 2 * MIN_DISTINCT_ROWS:
        return 1
    counts = rows.unique(return_counts=True)[1]
    return math.gcd(*counts.tolist()) if len(counts) >= MIN_DISTINCT_ROWS else 1


def _has_measurements(columns: Sequence[Tensor], group: Tensor, number: int, twice: int) -> bool:
    """Whether some column holds measurements, which would not be equal in so many rows by chance."""
    # It has another value in nearly every distinct row, and is not on a grid so coarse that n rows are likely to
    # coincide, like counts and rounded numbers: in M places about n² / M of them do.
    if 2 * number < len(group):  # most rows recur: these are codes
        return False
    first = torch.zeros(number, dtype=torch.int64).scatter_(0, group, torch.arange(len(group)))
    for leaf in columns:
        if leaf.is_floating_point():
            for column in leaf[first].double().T:
                values = column[~column.isnan()].unique()
                met = len(group) ** 2 / _grid_point_count(values)
                if (
                    len(values) >= DISTINCT_COLUMN_SHARE * number
                    and twice > MIN_DUPLICATE_ROWS + DUPLICATES_OVER_CHANCE * met
                ):
                    return True
    return False


def _grid_point_count(values: Tensor) -> float:
    """Number of grid points between the least and the largest of sorted distinct numbers; infinite without a grid."""
    if len(values) < 2:
        return 1.0
    gaps = values.diff()
    steps = (gaps / gaps.min()).round()  # the least gap is rounded too, so that it is not the grid's
    off = (gaps / (gaps.sum() / steps.sum()) - steps).abs()
    return float(steps.sum()) + 1 if bool((off < GRID_TOLERANCE).all()) else float("inf")


def taken_as_a_number(problem: Problem, number: int, column: int, rows: Tensor) -> bool:
    """Whether the densities of rows follow their value in one column; True if they cannot be computed."""
    z = points_within_radius(NUM_DRAWS, problem.dim)
    double = problem.doubled()
    some = tuple(leaf[rows[:FEW_ROWS]] for leaf in double.rows)

    def densities(factor: float) -> Tensor:
        whole = not some[number].is_floating_point()
        changed = some[number].clone() if whole and not factor % 1 else some[number].to(torch.float64, copy=True)
        changed.view(len(changed), -1)[:, column] *= factor
        return double.pointwise_log_lik(z, (*some[:number], changed, *some[number + 1 :]))

    try:
        here, twice, near = (densities(factor) for factor in (1, 2, 1 + SAME_SHARE))
    except (RuntimeError, ValueError, IndexError, TypeError):  # the value is an index that the table does not have
        return True
    if not all(bool(found.isfinite().all()) for found in (here, twice, near)):
        return True
    if bool(((twice - here).abs() <= rounding_of(here)).all()):
        return False
    size = torch.maximum(_differences(here).abs().amax(), _differences(near).abs().amax())
    return bool((_differences(near) - _differences(here)).abs().amax() <= LARGEST_SLOPE_CHANGE * size)


def _differences(densities: Tensor) -> Tensor:
    """Differences (S - 1, m) of log densities (S, m) between each point and the first one."""
    return densities[1:] - densities[:1]
