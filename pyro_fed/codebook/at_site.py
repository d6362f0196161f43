"""What a site's table contradicts: its own codebook, and itself. Nothing here leaves the site but `Finding`s.

pandera checks what the codebook says (`schema`). What follows from a failure, such as the unit in which all values
would be in range, is looked for here, and replaces the failure that it explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pyro_fed.codebook import sentences
from pyro_fed.codebook.codebook import Codebook, Column, check_installed
from pyro_fed.codebook.rows import Table, TypedTable, failures, read_table, typed_table, whole_number_text
from pyro_fed.codebook.summary import SiteSummary, summarise
from pyro_fed.codebook.units import (
    DAYS_OF_A_YEAR,
    FALSE_ALARM_CHANCE,
    MAX_UNEXPLAINED_SHARE,
    Confusion,
    confusions,
    date_shift,
    format_in_words,
    format_of,
    swapped,
    swapped_format,
    unit_of_whole_numbers,
)
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import check_shown_name
from pyro_fed.errors import DataError, SettingError, listed

#: What is usually written for a missing number.
MISSING_CODES = (
    *(-1, -7, -8, -9, -77, -88, -99, -999, -9999),
    *(9, 77, 88, 97, 98, 99, 777, 888, 998, 999, 8888, 9999, 99999),
)
#: The most rows that spreadsheets, statistics programs and database clients export.
EXPORT_LIMITS = (1000, 5000, 10000, 16384, 32767, 32768, 50000, 65535, 65536, 100000, 1048575, 1048576)
#: Factor by which dependent columns make equal rows more frequent than independent ones would be.
DEPENDENCE_FACTOR = 10


@dataclass(frozen=True)
class SiteFinding:
    """A finding about a site's table.

    Attributes:
        site: whose table it is.
        finding: what speaks against it, as it may leave the site.
        rows: numbers of the rows, for the site alone.
        own: further words for the site alone.
        called: what a row's number counts, "line" or "row".
    """

    site: str
    finding: Finding
    rows: tuple[int, ...] = ()
    own: str = ""
    called: str = "row"


#: A finding, the positions of its rows, and words for the site alone.
Found = tuple[Finding, Any, str]


@dataclass(frozen=True, eq=False)
class _Column:
    """A column in the codebook's type and as texts, rows that are unreadable or fail a check, and the other columns."""

    name: str
    column: Column
    values: pd.Series
    texts: pd.Series
    unreadable: np.ndarray
    failed: dict[str, np.ndarray]
    frame: pd.DataFrame
    book: Codebook

    def failing(self, check: str) -> np.ndarray:
        """Positions of the rows that fail a check."""
        return self.failed.get(check, np.array([], int))

    def share(self, rows: np.ndarray) -> str:
        """How many of the table's rows these are, in a word."""
        return sentences.share(len(rows), len(self.values), self.book.fewest)


def findings_of(table: Table, book: Codebook, site: str) -> tuple[list[SiteFinding], TypedTable]:
    """The findings of a table, and the table in the codebook's types."""
    data = typed_table(table, book)
    failed = failures(data.frame, book, site)
    found = [*_file_findings(table, book, site), *_absent_columns(table, failed, book)]
    for name in data.frame if len(data.frame) else []:
        checks = {check: np.array(rows, int) for (check, of), rows in failed.items() if of == name}
        unreadable = data.unreadable[name].nonzero()[0]
        values, texts = data.frame[name], table.texts[name]
        found += _column_findings(
            _Column(name, book.columns[name], values, texts, unreadable, checks, data.frame, book)
        )
    found += _repeated_rows(data, table, book)
    return [
        SiteFinding(site, one, tuple(table.numbers[np.asarray(rows, int)].tolist()), own, table.called)
        for one, rows, own in found
    ], data


def _file_findings(table: Table, book: Codebook, site: str) -> Iterator[Found]:
    number, expected = len(table.texts) + len(table.ragged) + table.is_cut_off, book.expected_at(site).rows
    if table.ragged:
        lines = f"{len(table.ragged)} lines: {listed(table.ragged)}"
        yield sentences.ragged_rows(rows=sentences.share(len(table.ragged), number, book.fewest)), [], lines
    if table.is_cut_off:
        yield sentences.file_cut_off(), [], ""
    if expected is not None and number != expected:
        yield sentences.other_number_of_rows(expected=expected, more=number > expected), [], f"it has {number}"
    elif expected is None and number in EXPORT_LIMITS:
        yield sentences.at_export_limit(limit=number), [], ""


def _absent_columns(table: Table, failed: dict[tuple[str, str], list[int]], book: Codebook) -> Iterator[Found]:
    others = [name for name in table.texts if name not in book.columns]
    for check, name in failed:
        if check == "absent":
            alike = [other for other in others if _letters(other) == _letters(name)]
            named = "the same but for capitals, spaces or signs" if alike else ""
            unknown = f"columns that the codebook does not have: {listed(map(repr, others))}" if others else ""
            own = f"did you mean {alike[0]!r}?" if alike else unknown
            yield sentences.column_absent(column=name, named=named), [], own


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _column_findings(one: _Column) -> Iterator[Found]:
    name, unreadable = one.name, one.unreadable
    if one.column.type == "date":
        yield from _date_findings(one)
    elif len(unreadable):
        comma = bool(one.texts.iloc[unreadable].str.fullmatch(r"[-+]?\d+,\d+").all())
        yield sentences.not_numbers(column=name, rows=one.share(unreadable), decimal_comma=comma), unreadable, ""
    if one.column.has_moments:
        yield from _number_findings(one)
    if len(rows := one.failing("levels")):
        how, own = _unknown_levels(one.values.iloc[rows], one.column, one.book.fewest)
        yield sentences.unknown_levels(column=name, rows=one.share(rows), how=how), rows, own
    if len(rows := one.failing("field_uniqueness")):
        yield sentences.not_unique(column=name, rows=one.share(rows)), rows, ""
    if one.values.isna().all() and not len(unreadable):
        yield sentences.column_empty(column=name), [], ""
    elif len(rows := np.setdiff1d(one.failing("not_nullable"), unreadable)):
        yield sentences.values_missing(column=name, rows=one.share(rows)), rows, ""
    if one.values.notna().sum() >= one.book.fewest and one.values.nunique() == 1 and one.column.type != "identifier":
        yield sentences.constant(column=name), [], ""


# -- Numbers ------------------------------------------------------------------------------------------------------


def _number_findings(one: _Column) -> Iterator[Found]:
    name, outside, there = one.name, one.failing("range"), one.values.dropna().to_numpy()
    if units := _units_that_fit(there, len(outside), one.column):
        known = sentences.in_another_unit(column=name, factor=units[0].text)
        yield known if len(units) == 1 else sentences.in_unknown_unit(column=name), outside, ""
        return
    for code, rows in _missing_codes(one.values, outside):
        outside = np.setdiff1d(outside, rows)
        shown = f"{code:g}" if len(rows) >= one.book.fewest else "a number such as -9 or 99"
        yield sentences.missing_code(column=name, rows=one.share(rows), missing=shown), rows, f"the code is {code:g}"
    if len(outside):
        yield sentences.out_of_range(column=name, rows=one.share(outside)), outside, ""
    if len(broken := one.failing("whole")):
        factor = unit_of_whole_numbers(there, one.column)
        yield sentences.not_whole(column=name, rows=one.share(broken), factor=factor), broken, ""


def _units_that_fit(values: np.ndarray, outside: int, column: Column) -> list[Confusion]:
    """The named unit, or all powers of ten, with which nearly all values are in range, if half of them are not."""
    if column.range is None or not len(values) or 2 * outside < len(values):
        return []
    low, high = map(float, column.range)  # type: ignore[arg-type]
    fits = []
    for one in confusions(column):
        meant = (values - one.offset) / one.factor
        if ((meant < low) | (meant > high)).mean() <= MAX_UNEXPLAINED_SHARE:
            fits.append((abs(float(np.median(meant)) - (low + high) / 2), one))
    if named := [fit for fit in fits if fit[1].is_named]:
        return [min(named)[1]]
    return [one for _, one in fits]


def _missing_codes(values: pd.Series, outside: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Codes for missing values among the values, and their rows."""
    numbers = values.to_numpy(float)
    beyond = np.unique(numbers[outside])
    codes = [code for code in MISSING_CODES if code in beyond]
    if len(codes) == len(beyond):  # any other value out of range may make these mere slips, too
        yield from ((code, (numbers == code).nonzero()[0]) for code in codes)
    inside = np.setdiff1d(np.unique(numbers[~np.isnan(numbers)]), beyond)
    for code in (code for code in MISSING_CODES if code in inside):
        others, rows = numbers[np.isin(numbers, inside) & (numbers != code)], (numbers == code).nonzero()[0]
        if len(others) and _stands_out(code, len(rows), others):
            yield code, rows


def _stands_out(code: float, times: int, others: np.ndarray) -> bool:
    """Whether a code is far from all other values, or many times as frequent as each of many others."""
    counts = np.unique(others, return_counts=True)[1]
    low, high = np.quantile(others, [0.25, 0.75])
    gap = max(others.min() - code, code - others.max())
    far = times >= 2 and gap > 2 * (high - low) > 0
    return bool(far or (len(counts) >= 20 and times >= 6 and times > 3 * counts.max()))


# -- Categories ---------------------------------------------------------------------------------------------------


def _unknown_levels(values: pd.Series, column: Column, fewest: int) -> tuple[str, str]:
    """How unknown texts differ from the levels; and for the site alone those texts that are frequent enough."""
    counts = values.value_counts()
    texts, levels = [str(text) for text in counts.index], list(column.levels)
    spelt = {_letters(level) for level in levels}
    if all(_letters(text) in spelt for text in texts):
        how = "they differ from its levels by capitals, spaces or signs only"
    elif all(sum(_letters(level).startswith(_letters(text)) for level in levels) == 1 for text in texts):
        how = "they abbreviate its levels"
    elif all(re.fullmatch(r"-?\d+", whole_number_text(text)) for text in texts):
        how = "they are numbers, such as 1 and 2 for its levels, or a code for a missing value"
    else:
        how = ""
    frequent = [f"{text!r} ({count} rows)" for text, count in zip(texts, counts, strict=True) if count >= fewest]
    return how, ", ".join(frequent)


# -- Dates --------------------------------------------------------------------------------------------------------


def _date_findings(one: _Column) -> Iterator[Found]:
    name, column, values, unreadable = one.name, one.column, one.values, one.unreadable
    outside, early = one.failing("range"), one.failing("after")
    there = np.union1d(unreadable, values.notna().to_numpy().nonzero()[0])
    if len(unreadable):
        written = format_of(one.texts.iloc[there], column.format)
        if written == swapped_format(column.format):
            yield sentences.day_and_month_swapped(column=name, rows=one.share(there)), unreadable, ""
            return
        words = format_in_words(written) if written else ""
        yield sentences.not_dates(column=name, rows=one.share(unreadable), format=words), unreadable, ""
    shift = date_shift(values.dropna(), column) if 2 * len(outside) >= len(there) else ""
    if shift:
        yield sentences.dates_shifted(column=name, shift=shift), outside, ""
        return
    wrong = np.union1d(outside, early)
    if len(wrong) and (which := _swaps_that_mend(name, column, one.frame.iloc[wrong], one.book)):
        for swapped_one in which:
            yield sentences.day_and_month_swapped(column=swapped_one, rows="some"), wrong, ""
        return
    if len(outside):
        yield sentences.out_of_range(column=name, rows=one.share(outside)), outside, ""
    if len(early):
        yield sentences.dates_in_wrong_order(column=name, other=column.after, rows=one.share(early)), early, ""
    days = values.dropna().dt.day
    if (
        not len(unreadable)
        and days.nunique() > 2
        and days.max() <= 12
        and (12 * 12 / DAYS_OF_A_YEAR) ** len(days) < FALSE_ALARM_CHANCE
    ):
        yield sentences.no_late_days(column=name), [], ""


def _swaps_that_mend(name: str, column: Column, rows: pd.DataFrame, book: Codebook) -> list[str]:
    """The columns whose day and month, swapped where possible, bring three rows or more into range and order."""
    other = column.after
    if len(rows) < 3:
        return []
    own = [rows[name], swapped(rows[name])]
    others = [rows[other], swapped(rows[other])] if other in rows else [None]
    fits: dict[tuple[int, int], pd.Series] = {}
    for i, mine in enumerate(own):
        for j, theirs in enumerate(others):
            good = _in_range(mine, column)
            if theirs is not None:
                good &= ~(mine < theirs) & _in_range(theirs, book.columns[other])
            fits[i, j] = good
    for swaps, names in (((1, 0), [name]), ((0, 1), [other])):
        if swaps in fits and fits[swaps].mean() >= 1 - MAX_UNEXPLAINED_SHARE:
            return names
    mended = np.logical_or.reduce([good.to_numpy() for good in fits.values()]).mean()
    return [name, other] if other in rows and mended >= 1 - MAX_UNEXPLAINED_SHARE else []


def _in_range(values: pd.Series, column: Column) -> pd.Series:
    if column.range is None:
        return pd.Series(True, index=values.index)
    low, high = map(pd.Timestamp, column.range)
    return values.isna() | ((values >= low) & (values <= high))


# -- Rows ---------------------------------------------------------------------------------------------------------


def _repeated_rows(data: TypedTable, table: Table, book: Codebook) -> list[Found]:
    """Rows that are equal in all columns but identifiers, if chance does not explain them."""
    columns = [name for name in data.frame if book.columns[name].type != "identifier"]
    number = len(data.frame)
    if number < 2 or not columns:
        return []
    texts = table.texts[columns]
    again = texts.duplicated().to_numpy()
    copies = texts.groupby(columns, dropna=False).size()
    pairs = int((copies * (copies - 1) // 2).sum())
    equal = math.prod(float((texts[name].value_counts(normalize=True) ** 2).sum()) for name in columns)
    expected = DEPENDENCE_FACTOR * equal * number * (number - 1) / 2
    if not pairs or stats.poisson.sf(pairs - 1, expected) > FALSE_ALARM_CHANCE:
        return []
    rows = again.nonzero()[0]
    whole = bool((copies > 1).all())
    return [(sentences.rows_twice(rows=sentences.share(len(rows), number, book.fewest), whole=whole), rows, "")]


@dataclass(frozen=True)
class SiteCheck:
    """What `check` returns.

    Attributes:
        findings: what speaks against the table, with the numbers of its rows: for the site alone.
        summary: what may leave the site.
    """

    findings: list[SiteFinding]
    summary: SiteSummary


def _file_stem(rows: str | Path | pd.DataFrame) -> str:
    return "" if isinstance(rows, pd.DataFrame) else Path(rows).stem


@checked
def check(codebook: Codebook, data: str | Path | pd.DataFrame, site: str = "", fewest: int | None = None) -> SiteCheck:
    """Check a site's table against the codebook, and summarise what may leave the site.

    Args:
        codebook: of `read_codebook`.
        data: the path of a CSV file, or a data frame.
        site: the site's name; by default that of the file.
        fewest: the least number of rows about which a figure may leave, if the site wants more than the codebook's.

    Returns:
        Findings with the numbers of rows, for the site's own eyes, and a summary that has no row's value.

    Raises:
        DataError: the file cannot be read.
        SettingError: the extra `study` is not installed, or `fewest` is smaller than the codebook's.
        ProtocolError: the site has no name, as of a data frame, or one that is no plain name.

    Example:
        >>> checked = pf.codebook.check(book, "albany.csv")
        >>> for one in checked.findings:
        ...     print(one.finding.text, one.rows)
        >>> path = checked.summary.write("albany.json")
    """
    check_installed()
    site = site or _file_stem(data)
    check_shown_name(site)
    if fewest is not None:
        if fewest < codebook.fewest:
            raise SettingError(f"check: fewest must be at least the codebook's, {codebook.fewest}; received {fewest}")
        codebook = replace(codebook, fewest=fewest)
    table = read_table(data)
    findings, parsed = findings_of(table, codebook, site)
    return SiteCheck(findings, summarise(parsed.frame, codebook, site, [one.finding for one in findings]))


@checked
def read_rows(codebook: Codebook, data: str | Path | pd.DataFrame, site: str = "") -> pd.DataFrame:
    """A site's table in the codebook's types, as a model takes it.

    Categories have the codebook's levels in the codebook's order at every site, missing codes are missing values, dates
    are dates. Columns that the codebook does not have are left out.

    Args:
        codebook: of `read_codebook`.
        data: the path of a CSV file, or a data frame.
        site: the site's name; by default that of the file.

    Raises:
        DataError: the table contradicts the codebook; `check` says where.
        SettingError: the extra `study` is not installed.

    Example:
        >>> frame = pf.codebook.read_rows(book, "albany.csv")
        >>> list(frame["sex"].cat.categories)
        ['male', 'female']
    """
    check_installed()
    site = site or _file_stem(data)
    findings, parsed = findings_of(read_table(data), codebook, site)
    doubts = [one.finding for one in findings if one.finding.is_doubt]
    if doubts:
        raise DataError(
            f"read_rows: the table of {site or 'this site'} contradicts the codebook: "
            f"{listed(one.text for one in doubts)}. pyro-fed check shows the rows"
        )
    frame = parsed.frame
    for name in codebook.of_type("category"):
        if name in frame:
            column = codebook.columns[name]
            frame[name] = pd.Categorical(frame[name], categories=list(column.levels), ordered=column.ordered)
    return frame
