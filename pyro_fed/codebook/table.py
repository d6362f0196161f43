"""Table 1 of a paper: the patients by site and overall, from what has left the sites.

A count that a site withholds is not here. The count of all sites is then that of the others, "≥ 12": with the withheld
one in it, their difference would be that count. So the table is computed from the sites' summaries, and says no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

import pandas as pd

from pyro_fed.codebook.between_sites import check_together
from pyro_fed.codebook.codebook import Column
from pyro_fed.codebook.pooling import pooled
from pyro_fed.codebook.summary import CategorySummary, NumberSummary, SiteSummary
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL
from pyro_fed.errors import listed

#: What stands for a figure that a site withholds, and for a column that it does not have.
WITHHELD, ABSENT = "withheld", "–"
#: What stands before the count of all sites if some withhold theirs.
AT_LEAST = "≥"

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
        DataError: there are no summaries, two of one site, one called "overall", or some by another codebook.

    Example:
        >>> print(pf.codebook.table_one(summaries).to_markdown())
    """
    check_together(summaries)
    rows: Rows = [("Rows", _with_total([one.rows for one in summaries]))]
    notes = []
    for name, column in summaries[0].codebook.columns.items():
        shown = column.title or name
        if column.has_moments:
            numbers = [_part(one, one.numbers, name, NumberSummary()) for one in summaries]
            _add_numbers(shown, column, numbers, rows)
            withheld = [
                one.site for one, part in zip(summaries, numbers, strict=True) if part is not None and part.withholds
            ]
            if withheld:
                notes.append(f"Overall mean and SD of {shown}: without {listed(withheld)}, of too few rows.")
        elif column.type == "category":
            unknown = CategorySummary(levels=dict.fromkeys(column.levels))
            _add_category(shown, column, [_part(one, one.categories, name, unknown) for one in summaries], rows)
    cells, labels = [cells for _, cells in rows], [label for label, _ in rows]
    if any(text.startswith(AT_LEAST) for each in cells for text in each):
        notes.append(f"{AT_LEAST} n: the sum of the counts that are not withheld.")
    frame = pd.DataFrame(cells, index=labels, columns=[*(one.site for one in summaries), OVERALL])
    return TableOne(frame, tuple(notes))


def _part(summary: SiteSummary, parts: Mapping[str, S], name: str, withheld: S) -> S | None:
    """A site's summary of a column: None without the column, and one without figures where there are too few rows."""
    return withheld if summary.rows is None else parts.get(name)


def _add_numbers(shown: str, column: Column, parts: Sequence[NumberSummary | None], rows: Rows) -> None:
    """Add the rows of a column of numbers."""
    known = [part for part in parts if part is not None and part.has_moments]
    overall = ABSENT
    if known:
        all_of = pooled(known)
        varies = any(part.sd for part in known) or len({part.mean for part in known}) > 1
        overall = _mean_sd(all_of.mean, all_of.sd * math.sqrt(all_of.n / (all_of.n - 1)) if varies else 0.0)
    unit = f" ({column.unit})" if column.unit else ""
    rows.append((f"{shown}{unit}, mean (SD)", [*map(_number_cell, parts), overall]))
    _add_missing(parts, rows)


def _number_cell(part: NumberSummary | None) -> str:
    if part is None or part.n == 0:
        return ABSENT
    return WITHHELD if part.withholds else _mean_sd(part.mean, part.sd)


def _add_category(shown: str, column: Column, parts: Sequence[CategorySummary | None], rows: Rows) -> None:
    """Add the rows of a category."""
    rows.append((f"{shown}, n (%)", [""] * (len(parts) + 1)))
    totals = [None if part is None else part.n for part in parts]
    for level in column.levels:
        rows.append(
            (f"  {level}", _with_total([ABSENT if part is None else part.levels[level] for part in parts], totals))
        )
    _add_missing(parts, rows)


def _add_missing(parts: Sequence[NumberSummary | CategorySummary | None], rows: Rows) -> None:
    """Add the row of missing values, if any site has some or withholds their number."""
    counts = [ABSENT if part is None else part.missing for part in parts]
    if any(count not in (0, ABSENT) for count in counts):
        rows.append(("  missing", _with_total(counts)))


def _with_total(counts: Sequence[int | str | None], totals: Sequence[int | None] = ()) -> list[str]:
    """Cells of counts, None where one is withheld, and of their sum; percentages of totals."""
    known = [count for count in counts if isinstance(count, int)]
    totals = totals or [None] * len(counts)
    cells = [count if isinstance(count, str) else _count(count, of) for count, of in zip(counts, totals, strict=True)]
    if None in counts:
        return [*cells, f"{AT_LEAST} {sum(known)}"]
    return [*cells, _count(sum(known), sum(of or 0 for of in totals)) if known else ABSENT]


def _mean_sd(mean: float | None, sd: float | None) -> str:
    mean, sd = mean or 0.0, sd or 0.0
    decimals = 0 if sd == 0 else min(6, max(0, 1 - math.floor(math.log10(sd))))
    return f"{mean:.{decimals}f} ({sd:.{decimals}f})"


def _count(count: int | None, total: int | None) -> str:
    if count is None:
        return WITHHELD
    return f"{count} ({100 * count / total:.0f} %)" if total else str(count)
