"""A site's summary: what of its table may leave the site, as a JSON file.

Let F be the codebook's `fewest`. The rules, each of which a function below keeps:

- A count from 1 to F - 1 is withheld. The counts of a column's levels have a known sum, so that further counts, the
  smallest first, are withheld until there are two at least and their sum is F at least (`withheld_cells`).
- Mean and SD are those of F values at least. A column with at most three different values, whose counts follow from the
  number of values, mean and SD, is judged by these counts.
- A quantile is the mean of F neighbouring values; no two quantiles share a value, and F values at least are in none.
- Means by the levels of a category leave together or not at all: each group, that of the rows whose level is missing
  among them, has F values at least, or none. Groups differ from each other and from the whole by F values then.
- Levels that have an order are halved for these means, and all counts that are withheld are in one half.
- Bins of time are joined until each has no event, or F, and the same of censored rows (`summarise_outcome`). They
  leave with all counts of the event's levels, or not at all.
- The number of missing values leaves as it is, since mean and SD mean nothing without the number of values, unless the
  column says suppress_missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final, Literal

import numpy as np
import pandas as pd

from pyro_fed.codebook import sentences
from pyro_fed.codebook.codebook import NUMBERS, Codebook, Column, Outcome, checked_codebook, from_json, to_json
from pyro_fed.codebook.units import days_of, unit_of_whole_numbers
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import check_shown_name
from pyro_fed.conventions.output import write_file
from pyro_fed.errors import DataError, shown
from pyro_fed.ops.small_counts import joined_bins, withheld_cells


@dataclass(frozen=True, kw_only=True)
class OutcomeSummary:
    """Events and censored rows by bins of time; nothing where they are withheld.

    Attributes:
        ends: of the bins, some of the codebook's: small counts are joined with their neighbours.
        events: of each bin.
        censored: rows of each bin; in the last one also those that have no event until its end.
    """

    ends: tuple[float, ...] = ()
    events: tuple[int, ...] = ()
    censored: tuple[int, ...] = ()


def summarise_outcome(frame: pd.DataFrame, outcome: Outcome, book: Codebook) -> OutcomeSummary:
    """Counts of events and censored rows by bins of time, of the rows with both; none where a site lacks one.

    The rows of each level are known. So events after the last end are counted apart from the other rows of the last
    bin, and the rows without time, level or both are withheld like those of a bin.
    """
    if not {outcome.time, outcome.event, book.columns[outcome.time].after or outcome.time} <= set(frame):
        return OutcomeSummary()
    time, status = _times(frame, outcome, book), frame[outcome.event]
    has_time, has_level = ~np.isnan(time), status.isin(list(book.columns[outcome.event].levels)).to_numpy(bool)
    has_event = (status == outcome.level).to_numpy(bool)
    complete = has_time & has_level
    place, is_event = np.searchsorted(outcome.ends, time[complete]), has_event[complete]
    is_later = place == len(outcome.ends)
    kinds = (is_event & ~is_later, ~is_event, is_event & is_later)
    place = np.minimum(place, len(outcome.ends) - 1)
    cells = np.stack([np.bincount(place[kind], minlength=len(outcome.ends)) for kind in kinds], 1)
    incomplete = [(which & ~has_time).sum() for which in (has_event, has_level & ~has_event, ~has_level)]
    incomplete.append((~has_level & has_time).sum())
    ends = joined_bins(cells.tolist(), book.fewest) if complete.any() else None
    if ends is None or any(0 < count < book.fewest for count in incomplete):
        return OutcomeSummary()
    sums = np.diff(np.concatenate([np.zeros((1, 3), int), cells.cumsum(0)[np.array(ends) - 1]]), axis=0)
    return OutcomeSummary(
        ends=tuple(outcome.ends[end - 1] for end in ends),
        events=tuple(map(int, sums[:, 0])),
        censored=tuple(map(int, sums[:, 1:].sum(1))),
    )


def _times(frame: pd.DataFrame, outcome: Outcome, book: Codebook) -> np.ndarray:
    """The times (n,) to the event or the end of observation, NaN where they are missing; of dates in days."""
    times, begin = frame[outcome.time], book.columns[outcome.time].after
    return np.asarray((times - frame[begin]) / pd.Timedelta(days=1) if begin else times, float)


FORMAT: Final = "pyro_fed site summary 1"
#: Quantiles in a summary, if there are enough rows.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
#: Groups of an ordered category: its levels below a place, and those above.
HALVES = ("lower levels", "upper levels")
#: With at most this many different values, n, mean and SD determine the count of each.
MAX_DETERMINED_VALUES = 3


@dataclass(frozen=True, kw_only=True)
class NumberSummary:
    """A column of numbers or dates; what is withheld is None.

    Attributes:
        n: values.
        missing: missing values.
        mean: of the values; of dates in days since 1970-01-01.
        sd: their SD, with n - 1.
        quantiles: by their probability, each the mean of neighbouring values.
        decimals: of the numbers, but for fewer than `fewest` of them.
        whole_in: the unit in which numbers with decimals would be whole ones, see `Confusion.text`.
    """

    n: int | None = None
    missing: int | None = None
    mean: float | None = None
    sd: float | None = None
    quantiles: dict[str, float] = field(default_factory=dict)
    decimals: int | None = None
    whole_in: str = ""

    @property
    def has_moments(self) -> bool:
        """Whether mean and SD have left the site."""
        return bool(self.n) and self.mean is not None and self.sd is not None

    @property
    def withholds(self) -> bool:
        """Whether there are values, and mean and SD have not left the site."""
        return self.n != 0 and not self.has_moments


@dataclass(frozen=True, kw_only=True)
class CategorySummary:
    """A category; what is withheld is None.

    Attributes:
        n: rows with one of the levels.
        missing: rows without.
        levels: rows of each level.
    """

    n: int | None = None
    missing: int | None = None
    levels: dict[str, int | None] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all counts have left the site."""
        return bool(self.n) and None not in self.levels.values()


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Means of one column by the levels of a category.

    Attributes:
        category: whose levels they are, or the lower and the upper half of them.
        column: whose means they are.
        level: of `column`, if it is a category: the means are then shares of this level. Else an empty text.
        n: values by level of `category`, each level that has any.
        means: by level of `category`.
    """

    category: str
    column: str
    level: str = ""
    n: dict[str, int]
    means: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A finding of a site: its code and figures, from which its sentence is written."""

    code: str
    figures: dict[str, bool | int | str | tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SiteSummary:
    """What of a site's table leaves the site, see `check`.

    Attributes:
        site: the site's name.
        rows: of the table; None if there are fewer than may leave. Then there are no figures at all.
        numbers: by column, of numbers.
        dates: by column, of dates, in days since 1970-01-01.
        categories: by column, of categories.
        relations: means by level of a category.
        outcomes: counts of events and censored rows by time.
        findings: what the table contradicts, without rows and values.
        codebook: by which it was checked; `fewest` is the site's.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    format: Literal["pyro_fed site summary 1"]
    site: str
    rows: int | None = None
    numbers: dict[str, NumberSummary] = field(default_factory=dict)
    dates: dict[str, NumberSummary] = field(default_factory=dict)
    categories: dict[str, CategorySummary] = field(default_factory=dict)
    relations: tuple[Relation, ...] = ()
    outcomes: dict[str, OutcomeSummary] = field(default_factory=dict)
    findings: tuple[Noted, ...] = ()
    codebook: Codebook

    @property
    def columns(self) -> Mapping[str, NumberSummary | CategorySummary]:
        """All columns of which there is a summary."""
        return {**self.numbers, **self.dates, **self.categories}

    def as_findings(self) -> list[Finding]:
        """The site's findings, their sentences written anew."""
        return [sentences.as_finding(one.code, one.figures) for one in self.findings]

    def counts(self) -> dict[str, int]:
        """Every count that leaves, of rows, values and levels, by a name such as "sex: male"."""
        found = {"rows": self.rows}
        for name, one in self.columns.items():
            found[name] = one.n
        for name, category in self.categories.items():
            found |= {f"{name}: {level}": count for level, count in category.levels.items()}
        for one_of in self.relations:
            found |= {f"{one_of.category}: {group} of {one_of.column}": count for group, count in one_of.n.items()}
        for name, one_of_time in self.outcomes.items():
            for kind, counts in (("events", one_of_time.events), ("censored", one_of_time.censored)):
                ends = zip(one_of_time.ends, counts, strict=True)
                found |= {f"{name}: {kind} to {end:g}": count for end, count in ends}
        return {name: count for name, count in found.items() if count is not None}

    def to_json(self) -> bytes:
        """The summary as its file has it."""
        return to_json(self, brief=("codebook",))

    def write(self, path: str | Path) -> Path:
        """Write the summary as a JSON file.

        Args:
            path: of the file, which is replaced if there is one.

        Returns:
            The path.

        Raises:
            SettingError: the file cannot be written.
        """
        return write_file(path, self.to_json())


@checked
def read_summary(path: str | Path) -> SiteSummary:
    """Read the summary of a site.

    Args:
        path: of a JSON file that `pyro-fed check` or `SiteSummary.write` has written.

    Raises:
        DataError: the file cannot be read, or is not such a summary; the message names the entries.
        ProtocolError: the site's name is no plain name.

    Example:
        >>> summary = pf.codebook.read_summary("albany.json")
    """
    summary = from_json(SiteSummary, Path(path))
    checked_codebook(summary.codebook, f"{path}, codebook")
    check_shown_name(summary.site)
    _check_columns(summary, str(path))
    if not all(one.whole_in.isprintable() for one in summary.numbers.values()):
        raise DataError(f"{path}: numbers have characters that are not printable")
    for number, one in enumerate(summary.findings):
        _check_noted(one, f"{path}: findings.{number}", summary.codebook)
    return summary


def _check_columns(summary: SiteSummary, where: str) -> None:
    """Refuse figures of columns and levels that the summary's own codebook does not have."""
    columns = summary.codebook.columns
    kinds = {
        **dict.fromkeys(summary.dates, ("date",)),
        **dict.fromkeys(summary.categories, ("category",)),
        **dict.fromkeys(summary.numbers, NUMBERS),
    }
    for name, types in kinds.items():
        if name not in columns or columns[name].type not in types:
            raise DataError(f"{where}: its codebook has no column {shown(name)} of type {' or '.join(types)}")
    for name, one in summary.categories.items():
        if list(one.levels) != list(columns[name].levels):
            raise DataError(f"{where}: the levels of {name} are not those of its codebook")
    for number, relation in enumerate(summary.relations):
        known = {*summary.numbers, *summary.categories}
        if (
            relation.category not in summary.categories
            or relation.column not in known
            or relation.n.keys() != relation.means.keys()
            or bool(relation.level) != (relation.column in summary.categories)
        ):
            raise DataError(f"{where}: relations.{number} is not one of its columns")
    for name, outcome in summary.outcomes.items():
        known_ends = summary.codebook.outcomes[name].ends if name in summary.codebook.outcomes else ()
        counts = (*outcome.events, *outcome.censored)
        if (
            any(end not in known_ends for end in outcome.ends)
            or any(not before < after for before, after in pairwise(outcome.ends))
            or not len(outcome.ends) == len(outcome.events) == len(outcome.censored)
            or any(count < 0 for count in counts)
        ):
            raise DataError(f"{where}: outcomes.{shown(name)} does not have the bins of its codebook")


def _check_noted(one: Noted, where: str, book: Codebook) -> None:
    """Refuse a finding whose sentence cannot be written, or whose texts are not printable."""
    texts = [part for value in one.figures.values() for part in (value if isinstance(value, tuple) else (value,))]
    if any(isinstance(text, str) and not text.isprintable() for text in texts):
        raise DataError(f"{where} has characters that are not printable")
    try:
        finding = sentences.as_finding(one.code, one.figures)
    except (KeyError, TypeError):
        raise DataError(
            f"{where} has a code or figures that this version does not know: use one version at all sites"
        ) from None
    if finding.where.get("column", next(iter(book.columns))) not in book.columns:
        raise DataError(f"{where} is about a column that its codebook does not have")


def summarise(frame: pd.DataFrame, book: Codebook, site: str, findings: Sequence[Finding]) -> SiteSummary:
    """The summary of a table in the codebook's types."""
    noted = tuple(Noted(code=one.code, figures={**one.where, **one.figures}) for one in findings)
    number, fewest = len(frame), book.fewest
    if number < fewest:
        return SiteSummary(format=FORMAT, site=site, codebook=book, findings=noted)
    numbers, dates, categories = {}, {}, {}
    for name in frame:
        column = book.columns[name]
        if column.has_moments:
            numbers[name] = summarise_numbers(frame[name].to_numpy(float), column, fewest)
        elif column.type == "date":
            dates[name] = summarise_numbers(_days(frame[name]), column, fewest)
        elif column.type == "category":
            categories[name] = summarise_category(frame[name], column, fewest)
    whole = [name for name, one in categories.items() if one.is_whole]
    summary = SiteSummary(
        format=FORMAT,
        site=site,
        rows=number,
        numbers=numbers,
        dates=dates,
        categories=categories,
        outcomes={
            name: summarise_outcome(frame, one, book) if one.event in whole else OutcomeSummary()
            for name, one in book.outcomes.items()
        },
        findings=noted,
        codebook=book,
    )
    return replace(summary, relations=tuple(_relations(frame, summary)))


def _days(dates: pd.Series) -> np.ndarray:
    days = np.full(len(dates), np.nan)
    there = dates.notna().to_numpy()
    days[there] = days_of(dates[there])
    return days


def may_leave(counts: Sequence[int] | np.ndarray, fewest: int) -> bool:
    """Whether each of some counts is zero, or not too small."""
    counts = np.asarray(counts)
    return bool(((counts == 0) | (counts >= fewest)).all())


def summarise_numbers(values: np.ndarray, column: Column, fewest: int) -> NumberSummary:
    """The summary of numbers (n,), NaN where they are missing."""
    there = np.sort(values[~np.isnan(values)])
    n, missing = len(there), len(values) - len(there)
    if not may_leave([n], fewest) or (column.suppress_missing and not may_leave([missing], fewest)):
        return NumberSummary()
    if not n or not _moments_may_leave(there, fewest):
        return NumberSummary(n=n, missing=missing)
    sd = float(there.std(ddof=1)) if there[0] != there[-1] else 0.0
    return NumberSummary(
        n=n,
        missing=missing,
        mean=float(there.mean()),
        sd=sd,
        quantiles=_quantiles(there, fewest) if column.has_moments else {},
        decimals=_decimals(there, fewest) if column.has_moments else None,
        whole_in=unit_of_whole_numbers(there, column) if column.has_moments else "",
    )


def _moments_may_leave(values: np.ndarray, fewest: int) -> bool:
    counts = np.unique(values, return_counts=True)[1]
    return len(counts) > MAX_DETERMINED_VALUES or may_leave(counts, fewest)


def _quantiles(ordered: np.ndarray, fewest: int) -> dict[str, float]:
    """Means of `fewest` neighbours around each quantile: all, the inner three, the median, or none."""
    n = len(ordered)
    for chosen in (QUANTILES, QUANTILES[1:-1], QUANTILES[2:3]):
        starts = [round(p * (n - 1) - (fewest - 1) / 2) for p in chosen]
        apart = all(after - before >= fewest for before, after in pairwise(starts))
        inside = starts[0] >= 0 and starts[-1] + fewest <= n
        if apart and inside and n - fewest * len(chosen) >= fewest and len(np.unique(ordered)) > MAX_DETERMINED_VALUES:
            return {f"{p:g}": float(ordered[i : i + fewest].mean()) for p, i in zip(chosen, starts, strict=True)}
    return {}


def _decimals(values: np.ndarray, fewest: int) -> int | None:
    """The fewest decimals with which fewer than `fewest` values are not written in full; None for more than six."""
    for decimals in range(7):
        if (abs(values - values.round(decimals)) > 1e-9 * np.maximum(1, abs(values))).sum() < fewest:
            return decimals
    return None


def summarise_category(values: pd.Series, column: Column, fewest: int) -> CategorySummary:
    """The summary of a category's levels; texts that are none of them count as missing."""
    counts = [int((values == level).sum()) for level in column.levels]
    missing = len(values) - sum(counts)
    cells = [*counts, missing] if column.suppress_missing else counts
    hidden = withheld_cells(cells, fewest)
    if not column.suppress_missing and not may_leave([sum(counts)], fewest):
        return CategorySummary(levels=dict.fromkeys(column.levels))
    levels = {level: None if i in hidden else counts[i] for i, level in enumerate(column.levels)}
    if len(counts) in hidden:
        return CategorySummary(levels=levels)
    return CategorySummary(n=sum(counts), missing=missing, levels=levels)


# -- Means by level -----------------------------------------------------------------------------------------------


def _relations(frame: pd.DataFrame, summary: SiteSummary) -> Iterator[Relation]:
    """Means of numbers, and shares of levels, by the levels of each category; of ordered ones also by their halves."""
    book, fewest = summary.codebook, summary.codebook.fewest
    numbers = {name: frame[name].to_numpy(float) for name, one in summary.numbers.items() if one.has_moments}
    whole, halved = {}, {}
    for name, one in summary.categories.items():
        codes = _codes(frame[name], book.columns[name])
        if one.is_whole:
            whole[name] = (list(one.levels), codes)
        if book.columns[name].ordered and (split := _split(list(one.levels.values()), codes)):
            halved[name] = (list(HALVES), np.where(codes < 0, -1, codes >= split))
    groupings = [
        *whole.items(),
        *((name, of) for name, of in halved.items() if name not in whole or len(whole[name][0]) > 2),
    ]
    for category, (levels, groups) in groupings:
        if not may_leave([(groups < 0).sum()], fewest):
            continue
        for name, values in numbers.items():
            distinct, cells = np.unique(values, return_inverse=True)
            if len(distinct) - np.isnan(values).any() > MAX_DETERMINED_VALUES:
                cells = np.zeros_like(cells)
            cells = np.where(np.isnan(values), -1, cells)
            if _groups_may_leave(groups, cells, book.columns[name], fewest):
                yield _relation(category, name, "", levels, groups, values)
        for name, (others, cells) in (whole | halved).items():
            if name != category and _groups_may_leave(groups, cells, book.columns[name], fewest):
                for i, level in enumerate(others):
                    yield _relation(category, name, level, levels, groups, np.where(cells < 0, np.nan, cells == i))


def _split(counts: Sequence[int | None], codes: np.ndarray) -> int:
    """Where ordered levels are halved: nearest to the median, all withheld counts in one half; 0 if nowhere.

    The half without them has the sum of counts that leave, and the other one the rest, which follows from n.
    """
    hidden = [i for i, count in enumerate(counts) if count is None]
    known = codes[codes >= 0]
    places = [i for i in range(1, len(counts)) if not hidden or i <= hidden[0] or i > hidden[-1]]
    return min(places, key=lambda i: abs(float((known < i).mean()) - 0.5), default=0) if len(known) else 0


def _codes(values: pd.Series, column: Column) -> np.ndarray:
    """The number of each row's level, -1 for none of them, (n,)."""
    known = values.where(values.isin(list(column.levels)), None)
    return np.asarray(pd.Categorical(known, categories=list(column.levels)).codes)


def _groups_may_leave(groups: np.ndarray, cells: np.ndarray, column: Column, fewest: int) -> bool:
    """Whether each value has no row, or enough, in each group; -1 is a missing value, or the group without a level."""
    counted = np.ones(len(cells), bool) if column.suppress_missing else cells >= 0
    pairs = np.stack([groups[counted], cells[counted]])
    return may_leave(np.unique(pairs, axis=1, return_counts=True)[1], fewest)


def _relation(
    category: str, column: str, level: str, levels: Sequence[str], groups: np.ndarray, values: np.ndarray
) -> Relation:
    there = (groups >= 0) & ~np.isnan(values)
    counts = np.bincount(groups[there], minlength=len(levels))
    sums = np.bincount(groups[there], values[there], len(levels))
    n = {group: int(count) for group, count in zip(levels, counts, strict=True) if count}
    means = {group: float(total / count) for group, total, count in zip(levels, sums, counts, strict=True) if count}
    return Relation(category=category, column=column, level=level, n=n, means=means)
