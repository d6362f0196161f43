"""Parse a partition from text on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.federation.partition.base import Partition
from pyro_fed.federation.partition.by_label import Dirichlet, LabelShards, MajorityShare
from pyro_fed.federation.partition.by_row import IID, ByGroup, QuantitySkew, SortedBy

#: Partitions written NAME:NUMBER, with the number's type.
NUMBERED: dict[str, tuple[Callable[[Any], Partition], type]] = {
    "dirichlet": (Dirichlet, float),
    "quantity": (QuantitySkew, float),
    "shards": (LabelShards, int),
    "majority": (MajorityShare, float),
}

#: Partitions written NAME (by the labels) or NAME:COLUMN.
BY_COLUMN: dict[str, Callable[[Any], Partition]] = {"sorted": SortedBy, "group": ByGroup}

USAGE = (
    "write iid, dirichlet:ALPHA, quantity:ALPHA, shards:CLASSES, majority:SHARE, "
    "sorted, sorted:COLUMN, group or group:COLUMN"
)


@checked
def parse(text: str, columns: Any = None, named: Mapping[str, Any] | None = None) -> Partition:
    """The partition that a text such as "dirichlet:0.3" stands for.

    Args:
        text: NAME or NAME:VALUE; see the table in `pyro_fed.partition`.
        columns: matrix (rows, columns), usually the model's covariates, from which sorted:COLUMN and
            group:COLUMN take the column with that index, counted from 0.
        named: columns by name, for which sorted:COLUMN and group:COLUMN may give the name; upper or lower case is one.

    Raises:
        SettingError: an unknown name, a missing or unreadable value, or a column that is not there.

    Example:
        >>> pf.partition.parse("dirichlet:0.3")
    """
    name, colon, value = (part.strip() for part in text.lower().partition(":"))
    if name == "iid" and not colon:
        return IID()
    if name in NUMBERED and value:
        kind, read = NUMBERED[name]
        return kind(_number(text, value, read))
    if name in BY_COLUMN and bool(colon) == bool(value):
        return BY_COLUMN[name](_column(text, value, columns, named or {}) if value else None)
    raise SettingError(f"partition {text!r} is not understood; {USAGE}")


def _number(text: str, value: str, read: type) -> Any:
    try:
        return read(value)
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise SettingError(f"partition {text!r}: {value!r} is not {kind}; {USAGE}") from None


def _column(text: str, value: str, columns: Any, named: Mapping[str, Any]) -> Any:
    found = [column for name, column in named.items() if name.lower() == value]
    if len(found) == 1:
        return found[0]
    if named and not value.lstrip("-").isdigit():
        several = "several columns" if found else "no column"
        written = text.partition(":")[2].strip()
        raise SettingError(f"partition {text!r}: there is {several} {written!r}; there are {list(named)}")
    index = _number(text, value, int)
    shape = np.shape(columns)
    if len(shape) != 2:
        raise SettingError(
            f"partition {text!r} names a column, but the data's first argument has shape {shape}, "
            "expected (rows, columns); leave the column out to use the labels"
        )
    if not 0 <= index < shape[1]:
        raise SettingError(f"partition {text!r}: columns run from 0 to {shape[1] - 1}")
    column: np.ndarray = columns[:, index]
    return column
