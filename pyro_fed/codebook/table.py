"""Table 1 of a paper: the patients by site and overall, from what has left the sites.

A count that a site withholds is not here, and the overall figures of its column leave that site out, with a note: their
difference from the other sites' would be the count. So the table says no more than the sites' summaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

import pandas as pd

from pyro_fed.codebook.between_sites import check_sites
from pyro_fed.codebook.codebook import Column
from pyro_fed.codebook.pooling import pooled
from pyro_fed.codebook.summary import CategorySummary, NumberSummary, SiteSummary
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import listed

#: What stands for a figure that a site withholds, and for a column that it does not have.
WITHHELD, ABSENT = "withheld", "–"

S = TypeVar("S", NumberSummary, CategorySummary)
#: Label and cells of each row of the table.
Rows = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class TableOne:
    """Table 1, see `table_one`.

    Attributes:
        frame: a row for each figure, a column for each site and one for all: texts such as "62.1 (9.8)".
        notes: which figures of all sites leave sites out, and why.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]

    def to_text(self) -> str:
        """The table for a terminal."""
        rows = self.frame.copy()
        width = max(map(len, rows.index))
        rows.index = pd.Index([name.ljust(width) for name in rows.index])
        return "\n".join([rows.to_string(), *self.notes])

    def to_markdown(self) -> str:
        """The table in Markdown."""
        rows = self.frame.set_axis([_indented(name, "&emsp;") for name in self.frame.index])
        return "\n\n".join([str(rows.to_markdown(disable_numparse=True)), *self.notes]) + "\n"

    def to_html(self) -> str:
        """The table in HTML, without a page around it."""
        rows = self.frame.set_axis([_indented(name, "\N{EM SPACE}") for name in self.frame.index])
        notes = "".join(f"<p>{escape(note)}</p>\n" for note in self.notes)
        return f"{rows.to_html(border=0)}\n{notes}"

    def __str__(self) -> str:
        return self.to_text()


def _indented(name: str, space: str) -> str:
    return name.replace("  ", space) if name.startswith("  ") else name


@checked
def table_one(summaries: Sequence[SiteSummary]) -> TableOne:
    """Table 1: numbers as mean (SD), categories as n (%) of the rows with a level, and missing values.

    Args:
        summaries: of the sites, in the order of the table's columns.

    Raises:
        DataError: there are no summaries, or two of one site.

    Example:
        >>> print(pf.codebook.table_one(summaries).to_markdown())
    """
    check_sites(summaries, 1)
    there = [str(one.rows) if one.rows is not None else WITHHELD for one in summaries]
    rows: Rows = [("Rows", [*there, str(sum(one.rows or 0 for one in summaries))])]
    without: dict[str, list[str]] = {}
    if small := [one.site for one in summaries if one.rows is None]:
        without[listed(small)] = ["all columns"]
    for name, column in summaries[0].codebook.columns.items():
        shown = column.title or name
        if column.has_moments:
            kept = _add_numbers(
                shown, column, [_part(one, one.numbers, name, NumberSummary()) for one in summaries], rows
            )
        elif column.type == "category":
            unknown = CategorySummary(levels=dict.fromkeys(column.levels))
            kept = _add_category(shown, column, [_part(one, one.categories, name, unknown) for one in summaries], rows)
        else:
            continue
        if left := [one.site for one, keeps in zip(summaries, kept, strict=True) if not keeps and name in one.columns]:
            without.setdefault(listed(left), []).append(shown)
    frame = pd.DataFrame(
        [cells for _, cells in rows],
        index=[label for label, _ in rows],
        columns=[*(one.site for one in summaries), "overall"],
    )
    notes = [
        f"Overall: {listed(names)} without {sites}, which withholds small counts." for sites, names in without.items()
    ]
    return TableOne(frame, tuple(notes))


def _part(summary: SiteSummary, parts: Mapping[str, S], name: str, withheld: S) -> S | None:
    """A site's summary of a column: None without the column, and one without figures where there are too few rows."""
    return withheld if summary.rows is None else parts.get(name)


def _add_numbers(shown: str, column: Column, parts: Sequence[NumberSummary | None], rows: Rows) -> list[bool]:
    """Add the rows of a column of numbers; whether each site is in the overall figures."""
    known = [part for part in parts if part is not None and part.has_moments]
    cells = _cells(
        parts, lambda part: _mean_sd(part.mean, part.sd) if part.has_moments else WITHHELD if part.n != 0 else ABSENT
    )
    overall = ABSENT
    if known:
        all_of = pooled(known)
        varies = any(part.sd for part in known) or len({part.mean for part in known}) > 1
        overall = _mean_sd(all_of.mean, all_of.sd * math.sqrt(all_of.n / (all_of.n - 1)) if varies else 0.0)
    unit = f" ({column.unit})" if column.unit else ""
    rows.append((f"{shown}{unit}, mean (SD)", [*cells, overall]))
    _add_missing(parts, rows)
    return [part is not None and part.has_moments for part in parts]


def _add_category(shown: str, column: Column, parts: Sequence[CategorySummary | None], rows: Rows) -> list[bool]:
    """Add the rows of a category; whether each site is in the overall figures."""
    whole = [part for part in parts if part is not None and part.is_whole]
    total = sum(part.n or 0 for part in whole)
    rows.append((f"{shown}, n (%)", [""] * (len(parts) + 1)))
    for level in column.levels:
        cells = [ABSENT if part is None else _count(part.levels[level], part.n) for part in parts]
        overall = _count(sum(part.levels[level] or 0 for part in whole), total) if whole else ABSENT
        rows.append((f"  {level}", [*cells, overall]))
    _add_missing(parts, rows)
    return [part is not None and part.is_whole for part in parts]


def _add_missing(parts: Sequence[NumberSummary | CategorySummary | None], rows: Rows) -> None:
    """Add the row of missing values, if any site has some or withholds their number."""
    there = [part.missing for part in parts if part is not None]
    if any(missing != 0 for missing in there):
        cells = [ABSENT if part is None else WITHHELD if part.missing is None else str(part.missing) for part in parts]
        rows.append(("  missing", [*cells, str(sum(missing or 0 for missing in there))]))


def _cells(parts: Sequence[NumberSummary | None], text: Callable[[NumberSummary], str]) -> list[str]:
    return [ABSENT if part is None else text(part) for part in parts]


def _mean_sd(mean: float | None, sd: float | None) -> str:
    mean, sd = mean or 0.0, sd or 0.0
    decimals = 0 if sd == 0 else min(6, max(0, 1 - math.floor(math.log10(sd))))
    return f"{mean:.{decimals}f} ({sd:.{decimals}f})"


def _count(count: int | None, total: int | None) -> str:
    if count is None:
        return WITHHELD
    return f"{count} ({100 * count / total:.0f} %)" if total else str(count)
