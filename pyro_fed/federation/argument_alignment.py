"""Bring clients' tables and dictionaries into one form: the same columns, in one order, of one dtype each.

A column of counts that happens to be whole at one hospital is read as integers there, and an export may have its
columns in another order: by name they are the same. Columns that differ by name, and a column that is text at one
client and numbers at another, are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pyro_fed.errors import DataError, listed

#: Kinds of dtypes that are promoted to one another.
NUMBERS = "biuf"


def align_argument(values: Sequence[Any], names: Sequence[str], what: str) -> list[Any]:
    """One argument, or a part of one, of all clients, with columns or keys in the order of the first client's.

    Other values than tables and dictionaries are returned unchanged. `what` names the argument in messages, such as
    "argument 'df'".

    Raises:
        DataError: some clients lack a column or key, or it is text at some and numbers at others.
    """
    first = values[0]
    if all(isinstance(value, pd.DataFrame) for value in values):
        _check_keys([list(value.columns) for value in values], names, f"{what}, a data frame,", "column")
        return _one_dtype([value[list(first.columns)] for value in values], names, what)
    if all(type(value) is dict for value in values):
        _check_keys([list(value) for value in values], names, f"{what}, a dictionary,", "key")
        parts = [align_argument([value[key] for value in values], names, f"{what}[{key!r}]") for key in first]
        return [dict(zip(first, mine, strict=True)) for mine in zip(*parts, strict=True)]
    tables = [isinstance(value, pd.DataFrame) for value in values]
    if any(tables) and not all(tables):
        other = tables.index(False)
        raise DataError(
            f"{what} is a data frame at client {names[tables.index(True)]} and a {type(values[other]).__name__} at "
            f"client {names[other]}: all clients pass the same"
        )
    return list(values)


def _check_keys(each: Sequence[list[Any]], names: Sequence[str], what: str, kind: str) -> None:
    for keys, name in zip(each, names, strict=True):
        missing = [str(key) for key in each[0] if key not in keys]
        more = [str(key) for key in keys if key not in each[0]]
        if missing or more:
            parts = [f"not the {kind}(s) {listed(missing)}"] if missing else []
            parts += [f"the {kind}(s) {listed(more)} more"] if more else []
            raise DataError(
                f"{what} has {' and '.join(parts)} at client {name}, compared with client {names[0]}, which has "
                f"{listed([str(key) for key in each[0]])}: all clients pass the same"
            )


def _one_dtype(frames: list[pd.DataFrame], names: Sequence[str], what: str) -> list[pd.DataFrame]:
    """The frames with each column in the dtype that fits all clients' values; frames of equal dtypes are unchanged."""
    promoted: dict[Any, Any] = {}
    for column in frames[0].columns:
        dtypes = [frame[column].dtype for frame in frames]
        if all(dtype == dtypes[0] for dtype in dtypes):
            continue
        plain = [isinstance(dtype, np.dtype) and dtype.kind in NUMBERS for dtype in dtypes]
        if all(plain):
            # truth values among whole numbers are these; integers of both signs stay integers
            of = [np.dtype(np.int64) if dtype.kind in "biu" else dtype for dtype in dtypes]
            promoted[column] = np.result_type(*of)
        elif all(pd.api.types.is_numeric_dtype(dtype) for dtype in dtypes):
            promoted[column] = np.dtype(np.float64)  # nullable ones among them
        elif any(plain):
            other = next(k for k, numbers in enumerate(plain) if not numbers)
            _check_numbers(frames[other][column], f"{what}[{column!r}]", names[other], names[plain.index(True)])
    return [frame.astype(promoted) for frame in frames] if promoted else frames


def _check_numbers(column: pd.Series, what: str, name: str, other: str) -> None:
    """Refuse a column that is text, or has no value, if other clients have numbers there."""
    if not len(column):
        return
    if bool(column.isna().all()):
        raise DataError(f"{what} has no value at client {name}, and numbers at client {other}: leave it out everywhere")
    texts = [part for part in column.dropna() if isinstance(part, str)]
    if texts:
        decimal = " (with decimal commas?)" if "," in texts[0] else ""
        raise DataError(
            f"{what} is text at client {name}{decimal}, and numbers at client {other}: "
            "convert it, such as by pandas.to_numeric, or pandas.read_csv(..., decimal=',')"
        )
