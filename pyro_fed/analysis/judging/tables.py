"""What a column of the comparison is, and a part of the comparison that is shown as one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pandas as pd


class Column(NamedTuple):
    """A column as readers see it.

    Args:
        heading: its name.
        write: how one of its numbers is written.
    """

    heading: str
    write: Callable[[float], str]


class Table(NamedTuple):
    """A part of the comparison.

    Args:
        title: of the part.
        note: how to read it.
        columns: by their names in what `pyro_fed.compare` returns, in the order in which they are shown.
    """

    title: str
    note: str
    columns: Mapping[str, Column]

    def written(self, found: pd.DataFrame) -> dict[str, list[str]]:
        """The cells of this part's columns, as far as the comparison has them.

        Args:
            found: of `pyro_fed.compare`, a row a result.

        Returns:
            A column of written cells by heading, each in the order of the results.
        """
        shown = {name: column for name, column in self.columns.items() if name in found}
        return {column.heading: [cell(value, column.write) for value in found[name]] for name, column in shown.items()}


def cell(value: float, write: Callable[[float], str]) -> str:
    """A number as it is shown; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else write(value)
