"""Mean and SD of columns over all clients, from sums alone.

Columns that each client standardises by its own rows mean something else at every client, and one coefficient cannot
fit them all. Each client sends count, sum and centred sum of squares; those of all are combined pairwise (Chan, Golub
& LeVeque, 1983), so that no rows travel and nothing cancels.

    clients = [(x1, y1), (x2, y2)]
    mean, sd = pf.pooled_moments([pf.column_sums(x) for x, _ in clients])
    fed = pf.Federation.from_clients(model, [((x - mean) / sd, y) for x, y in clients], plate="data")

Of data frames `x` it is `(x - mean.numpy()) / sd.numpy()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from pyro_fed.conventions.calls import checked
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.errors import DataError, listed


class ColumnSums(NamedTuple):
    """Count, mean and centred sum of squares of a client's columns.

    Attributes:
        number: of rows, ().
        mean: of each column, (P,).
        squares: Σ (x - mean)², (P,).
        columns: their names, of a data frame; empty without.
    """

    number: Tensor
    mean: Tensor
    squares: Tensor
    columns: tuple[str, ...] = ()


@checked
def column_sums(rows: Any) -> ColumnSums:
    """Count, mean and centred sum of squares of a client's columns, in float64.

    Args:
        rows: (n, P) numbers: a tensor, an array, or a data frame; n may be zero.

    Returns:
        The sums, in place of the rows.

    Raises:
        DataError: a single value, text, values that are missing or infinite; it names the columns and how many values.

    Example:
        >>> sums = pf.column_sums(x)                    # at each client
    """
    arguments = flatten(_take, (rows,), None)
    names = tuple(map(str, rows)) if isinstance(rows, pd.DataFrame | Mapping) else ()
    for i, leaf in enumerate(arguments.leaves):
        which = f"column '{names[i]}'" if len(arguments.leaves) > 1 else "rows"
        if arguments.names[i] in arguments.labels:
            raise DataError(f"column_sums: {which} is text or categories, which have no mean: leave it out")
        if not isinstance(leaf, Tensor):
            raise DataError(f"column_sums: {which} must be an array of numbers, received a {type(leaf).__name__}")
        if leaf.dim() == 0:
            raise DataError(f"column_sums: rows must be an array of rows, received a single value ({leaf.dtype})")
    if len({tuple(leaf.shape) for leaf in arguments.leaves}) != 1:
        raise DataError("column_sums: rows must be one array of rows, or columns of equal length")
    x = arguments.leaves[0] if len(arguments.leaves) == 1 else torch.stack([c.double() for c in arguments.leaves], -1)
    x = x.double()
    bad = (~x.isfinite()).sum(0).flatten().tolist()
    if any(bad):
        each = listed(f"{_column_text(i, names)} ({count} of {len(x)})" for i, count in enumerate(bad) if count)
        raise DataError(
            f"column_sums: values are missing or infinite in {each}: drop these rows or impute them first, as "
            "the model will get them"
        )
    mean = x.mean(0) if len(x) else x.new_zeros(x.shape[1:])
    return ColumnSums(x.new_tensor(len(x)), mean, (x - mean).square().sum(0), names)


def _take(rows: Any) -> None:
    """Stands for a model, so that the rows are read as a model's argument is."""


def _column_text(column: int, names: Sequence[str]) -> str:
    return f"column '{names[column]}'" if names else f"column {column}"


@checked
def pooled_moments(parts: Sequence[ColumnSums]) -> tuple[Tensor, Tensor]:
    """Mean and SD of each column over all rows, (P,) each; the SD of a constant column is one.

    Args:
        parts: of every client.

    Raises:
        DataError: there are no rows, clients have other columns, or sums are not finite.

    Example:
        >>> mean, sd = pf.pooled_moments([pf.column_sums(x) for x, _ in clients])
        >>> clients = [((x - mean) / sd, y) for x, y in clients]
    """
    for k, part in enumerate(parts):
        first = parts[0]
        if part.columns != first.columns or part.mean.shape != first.mean.shape:
            columns = [f"[{listed(one.columns)}]" if one.columns else tuple(one.mean.shape) for one in (first, part)]
            raise DataError(
                f"pooled_moments: the columns are {columns[0]} in the first client's sums and {columns[1]} in those "
                f"number {k}: all clients must pass the same columns in the same order"
            )
        bad = (~(part.mean.isfinite() & part.squares.isfinite())).flatten().nonzero().flatten().tolist()
        if bad and part.number > 0:
            each = listed(_column_text(i, part.columns) for i in bad)
            raise DataError(
                f"pooled_moments: the sums number {k} are not finite in {each}: that client must correct them"
            )
    total = reduce(_both, parts) if len(parts) else None
    if total is None or total.number == 0:
        raise DataError("no client has any row, so there is nothing to standardise by")
    sd = (total.squares / total.number).sqrt()
    return total.mean, torch.where(sd > 0, sd, 1.0)


def _both(a: ColumnSums, b: ColumnSums) -> ColumnSums:
    number = a.number + b.number
    share = b.number / number.clamp_min(1)
    apart = b.mean - a.mean
    squares = a.squares + b.squares + apart.square() * a.number * share
    return ColumnSums(number, a.mean + share * apart, squares, a.columns)
