"""How the comparison is shown: its parts, each a table, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd


class Column(NamedTuple):
    """A column of a table that is shown to readers.

    Args:
        heading: the words above the column.
        write: turns a number of the column into text.
    """

    heading: str
    write: Callable[[float], str]


class Table(NamedTuple):
    """A part of the comparison that is shown as one table.

    Args:
        title: the words above the table.
        note: says how to read the table.
        columns: the columns in the order in which they are shown, by their names in the table of `pyro_fed.compare`.
    """

    title: str
    note: str
    columns: Mapping[str, Column]

    def written(self, found: pd.DataFrame) -> dict[str, list[str]]:
        """The cells of this part as text.

        Args:
            found: the table of `pyro_fed.compare`, with a row for each result.

        Returns:
            By heading, the cells of each column that `found` has, in the order of the results.
        """
        shown = {name: column for name, column in self.columns.items() if name in found}
        return {column.heading: [cell(value, column.write) for value in found[name]] for name, column in shown.items()}


def cell(value: float, write: Callable[[float], str]) -> str:
    """A number as text; a dash for NaN.

    Args:
        value: the number.
        write: turns a number into text.
    """
    return "–" if value is None or math.isnan(value) else write(value)
