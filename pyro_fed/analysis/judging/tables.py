"""Display of the comparison: its parts, each a table, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd


class Column(NamedTuple):
    """A displayed column: its heading, and a function that turns its numbers into text."""

    heading: str
    write: Callable[[float], str]


class Table(NamedTuple):
    """A part of the comparison that is shown as one table.

    Args:
        title: the words above the table.
        note: how to read the table.
        columns: the columns in the order in which they are shown, by their names in the table of `pyro_fed.compare`.
    """

    title: str
    note: str
    columns: Mapping[str, Column]

    def written(self, found: pd.DataFrame) -> dict[str, list[str]]:
        """The cells of this part as text by heading, for the table `found` of `pyro_fed.compare`, in its order."""
        shown = {name: column for name, column in self.columns.items() if name in found}
        return {column.heading: [cell(value, column.write) for value in found[name]] for name, column in shown.items()}


def cell(value: float, write: Callable[[float], str]) -> str:
    """A number as text; a dash for NaN."""
    return "–" if value is None or math.isnan(value) else write(value)
