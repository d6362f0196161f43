"""Pooled means and SDs of the sites' columns, by which every model scales them, and Table 1 of a paper.

Both are computed from the sites' summaries. A count that a site withholds is not in the table. The count of all sites
is then that of the others, "≥ 12": with the withheld one in it, their difference would be that count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeVar

import pandas as pd
import torch

from pyro_fed.codebook.at_site import SiteFinding
from pyro_fed.codebook.between_sites import check_together, compare
from pyro_fed.codebook.codebook import Column, from_json, to_json
from pyro_fed.codebook.summary import CategorySummary, NumberSummary, SiteSummary
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL, closest
from pyro_fed.conventions.output import write_file
from pyro_fed.errors import DataError, listed, warn_user
from pyro_fed.federation.standardise import ColumnSums, pooled_moments

FORMAT: Final = "pyro_fed constants 1"
#: Findings after which a site has no values of the column.
NO_VALUES = ("column_absent", "column_empty")
#: Suspicions that leave a column out, unless it is asked for by name.
OTHER_UNITS = ("scale_differs", "units_mixed", "distribution_differs", "decimals_differ")


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Number, mean and SD (with n) of a column's values at all sites that have it."""

    n: int
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Pooled means and SDs, see `constants`.

    Attributes:
        study: the codebook's.
        sites: whose tables are pooled.
        columns: moments by column.
        left_out: columns of numbers without, and why.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    format: Literal["pyro_fed constants 1"]
    study: str = ""
    sites: tuple[str, ...] = ()
    columns: dict[str, Moments] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def standardise(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A copy of a table with its columns of numbers minus the pooled mean, divided by the pooled SD.

        Args:
            frame: of `read_rows`; columns without constants stay.

        Raises:
            DataError: none of the table's columns has constants.
        """
        known = [name for name in frame if name in self.columns]
        if not known:
            raise DataError(f"standardise: the table has none of the columns with constants, {listed(self.columns)}")
        of = self.columns
        return frame.assign(**{name: (frame[name] - of[name].mean) / of[name].sd for name in known})

    def write(self, path: str | Path) -> Path:
        """Write the constants as a JSON file, which every site's `load_rows` can read.

        Args:
            path: of the file, which is replaced if there is one.

        Returns:
            The path.

        Raises:
            SettingError: the file cannot be written.
        """
        return write_file(path, to_json(self))


@checked
def read_constants(path: str | Path) -> Constants:
    """Read pooled means and SDs.

    Args:
        path: of a JSON file that `Constants.write` or `pyro-fed check --compare --constants` has written.

    Raises:
        DataError: the file cannot be read, or is not such a file.

    Example:
        >>> frame = pf.codebook.read_constants("constants.json").standardise(frame)
    """
    return from_json(Constants, Path(path))


@checked
def constants(summaries: Sequence[SiteSummary], columns: Sequence[str] | None = None) -> Constants:
    """Pooled mean and SD of columns of numbers, as `pooled_moments` gives them for the pooled rows.

    Args:
        summaries: of the sites.
        columns: whose; by default all columns of numbers that can be pooled. `Constants.left_out` has the others: a
            site withholds their mean, its values contradict the codebook, or they may be in another unit.

    Raises:
        DataError: a column that is asked for cannot be pooled, with the site; there are no summaries, two of one site,
            or some by another codebook.

    Example:
        >>> path = pf.codebook.constants(summaries, ["age", "weight"]).write("constants.json")
    """
    check_together(summaries)
    book = summaries[0].codebook
    numbers = [name for name, column in book.columns.items() if column.has_moments]
    if unknown := [name for name in columns or () if name not in numbers]:
        raise DataError(f"constants: {unknown[0]!r} is not a column of numbers; {closest(unknown[0], numbers)}")
    doubted, suspected = _reasons(summaries)
    moments, left_out = {}, {}
    for name in numbers if columns is None else columns:
        parts = {one.site: one.numbers[name] for one in summaries if name in one.numbers}
        withheld = [site for site, part in parts.items() if part.withholds]
        reason = doubted.get(name) or (f"withheld by {listed(withheld)}" if withheld else "")
        if not any(part.n for part in parts.values()):
            reason = reason or "no site has values"
        if reason and columns is not None:
            raise DataError(f"constants: {name} cannot be pooled: {reason}. Correct the table, or leave the column out")
        if name in suspected and columns is not None:
            warn_user(f"constants: {name} is pooled although {suspected[name]}")
        elif not reason:
            reason = suspected.get(name, "")
        if reason:
            left_out[name] = reason
        else:
            moments[name] = pooled([part for part in parts.values() if part.n])
    sites = tuple(one.site for one in summaries)
    return Constants(format=FORMAT, study=book.study, sites=sites, columns=moments, left_out=left_out)


def _reasons(summaries: Sequence[SiteSummary]) -> tuple[dict[str, str], dict[str, str]]:
    """By column, the first finding that contradicts the codebook, and the first that suspects another unit."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    alone = [SiteFinding(one.site, finding) for one in summaries for finding in one.as_findings()]
    for one in compare(summaries) if len(summaries) > 1 else alone:
        finding = one.finding
        if (finding.is_doubt and finding.code not in NO_VALUES) or finding.code in OTHER_UNITS:
            found[not finding.is_doubt].setdefault(
                str(finding.where.get("column", "")), f"at {one.site}, {finding.text}"
            )
    return found


def pooled(parts: Sequence[NumberSummary]) -> Moments:
    """The moments of all sites' values of a column, from those of each."""
    sums = [
        ColumnSums(
            torch.tensor(float(part.n or 0), dtype=torch.float64),
            torch.tensor([part.mean], dtype=torch.float64),
            torch.tensor([(part.sd or 0.0) ** 2 * ((part.n or 0) - 1)], dtype=torch.float64),
        )
        for part in parts
    ]
    mean, sd = pooled_moments(sums)
    return Moments(n=sum(part.n or 0 for part in parts), mean=float(mean), sd=float(sd))


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
        rows = self.frame.set_axis([_with_indent(name, "&emsp;") for name in self.frame.index])
        return "\n\n".join([str(rows.to_markdown(disable_numparse=True)), *self.notes]) + "\n"

    def to_html(self) -> str:
        """The table in HTML, without a page around it."""
        rows = self.frame.set_axis([_with_indent(name, "\N{EM SPACE}") for name in self.frame.index])
        notes = "".join(f"<p>{escape(note)}</p>\n" for note in self.notes)
        return f"{rows.to_html(border=0)}\n{notes}"

    def __str__(self) -> str:
        return self.to_text()


def _with_indent(name: str, space: str) -> str:
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
