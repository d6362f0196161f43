"""Refuse columns of pandas, arguments or a partition's, whose indices list the same rows in different orders.

Rows are matched by position, as NumPy does. If two columns have the same labels in different orders, one of them was
sorted or shuffled alone, and each row would be matched by position with another row's outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from pyro_fed.density.rows.arguments import parameter_names, positional
from pyro_fed.errors import DataError
from pyro_fed.federation.partition.base import ByValue, Partition


def check_row_labels(
    model: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any] | None,
    where: str = "",
    partition: Partition | None = None,
) -> None:
    """Refuse columns of pandas with the same index in different orders.

    Args:
        model: the Pyro model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        where: the client's place in messages, such as " at client 2".
        partition: how rows go to clients, maybe by a column.

    Raises:
        DataError: names both arguments and the first row that differs.
    """
    args = positional(model, args, kwargs)
    named = [*zip(parameter_names(model, len(args)), args, strict=True), *(kwargs or {}).items()]
    first: dict[int, tuple[str, pd.Index]] = {}
    own = partition.row_labels if isinstance(partition, ByValue) else {}
    given = [found for head, value in named for found in _indices(head, value)]
    for place, (name, index) in enumerate([*given, *own.items()]):
        other, known = first.setdefault(len(index), (name, index))
        if index.equals(known) or not _same_labels(index, known):
            continue
        whose = where if place < len(given) else f" of {type(partition).__name__}"
        at = next(i for i, (mine, theirs) in enumerate(zip(index, known, strict=True)) if mine != theirs)
        raise DataError(
            f"arguments '{other}' and '{name}'{whose} have the same index in another order: row {at} is called "
            f"{known[at]!r} in the one and {index[at]!r} in the other. Rows are taken by position: put them in one "
            f"order, such as by {name}.loc[{other}.index], or, where positions are right as they are, pass "
            f"{name}.to_numpy()"
        )


def _indices(name: str, value: Any) -> Iterator[tuple[str, pd.Index]]:
    if isinstance(value, pd.DataFrame | pd.Series):
        yield name, value.index
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _indices(f"{name}[{key!r}]", part)


def _same_labels(one: pd.Index, other: pd.Index) -> bool:
    """Whether two indices have the same labels, each once."""
    return one.is_unique and other.is_unique and set(one) == set(other)
