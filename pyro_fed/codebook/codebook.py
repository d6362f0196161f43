"""The codebook: what the columns of every site's table must be, in one TOML file that all sites share.

fewest = 5                          # smaller counts do not leave a site
missing = ["", "NA"]                # texts that stand for a missing value

[columns.age]
type = "integer"
unit = "years"
range = [18, 100]

[columns.sex]
type = "category"
levels = { male = ["M", "1"], female = ["F", "2"] }     # or ["male", "female"]

Codebooks and summaries are dataclasses that pydantic reads, which checks every entry's type. Both files come from
others: an entry that is unknown or of another type is refused with its place, and its value is not repeated.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import combinations, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.errors import DataError, SettingError, listed

T = TypeVar("T")

#: The packages of the extra, by the modules that are imported.
NEEDED = ("pandera", "pydantic", "tabulate")


def check_installed() -> None:
    """Raise SettingError where a package of the extra `study` is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SettingError(f"codebooks need {listed(missing)}: pip install 'pyro_fed[study]'")


def from_table(kind: type[T], table: Any, where: str) -> T:
    """A dataclass from the tables of a TOML file; SettingError names the entries at fault."""
    check_installed()
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        raise SettingError(f"{where}: {_faults(error)}") from None


def from_json(kind: type[T], path: Path) -> T:
    """A dataclass from a JSON file; DataError names the entries at fault."""
    check_installed()
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=False)
    except ValidationError as error:
        raise DataError(f"{path} is not a file that pyro-fed check has written: {_faults(error)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error


def to_json(value: Any, brief: Sequence[str] = ()) -> bytes:
    """A dataclass as JSON; every number is read back as the same number. `brief` entries are without their defaults."""
    check_installed()
    from pydantic import TypeAdapter

    adapter = TypeAdapter(type(value))
    plain, short = (adapter.dump_python(value, mode="json", exclude_defaults=only) for only in (False, True))
    return (json.dumps(plain | {name: short[name] for name in brief}, indent=1, allow_nan=False) + "\n").encode()


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be read: the system's words, or Python's on its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _faults(error: Any) -> str:
    """Place and fault of each entry, without its value."""
    places = [(".".join(map(str, one["loc"])) or "the file", one["msg"]) for one in error.errors(include_input=False)]
    return "; ".join(f"{place}: {message}" for place, message in dict(places[:5]).items())


#: Types whose values are numbers, and have moments.
NUMBERS = ("number", "integer")
#: The least `fewest` of codebooks with outcomes: with 2, a joined bin reveals a count in it.
MIN_ROWS_OF_OUTCOMES = 3


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one column of every site's table must be.

    Args:
        type: "number", "integer" (whole numbers), "category", "date" or "identifier" (a text that names a row, and
            never leaves a site).
        title: what stands in tables; by default the column's name.
        unit: the unit of a number, such as "years" or "kg". Units of time, mass, length, energy and pressure are
            compared with the others of their kind; see `factors` for further ones.
        range: least and largest value that can be right, of numbers and dates.
        levels: the levels of a category, in their order; or a table, level = [other texts that mean it].
        ordered: whether the levels have an order, such as grades.
        missing: texts or numbers that stand for a missing value in this column, beside those of the codebook.
        format: how dates are written, as for `datetime.strptime`.
        after: a date column that is never later than this one.
        unique: whether no value may occur twice; by default of identifiers.
        complete: whether no value may be missing.
        optional: whether a site may lack the column.
        factors: units with which this one is confused: how many of them make one, such as { "mg/dL" = 0.0113 } for
            creatinine in µmol/L.
        suppress_missing: whether a small count of missing values is withheld like that of a level. Mean and SD are then
            withheld, too, since they need the number of values.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    type: Literal["number", "integer", "category", "date", "identifier"]
    title: str = ""
    unit: str = ""
    range: tuple[float, float] | tuple[datetime.date, datetime.date] | None = None
    levels: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    ordered: bool = False
    missing: tuple[str | float, ...] = ()
    format: str = "%Y-%m-%d"
    after: str = ""
    unique: bool | None = None
    complete: bool = False
    optional: bool = False
    factors: dict[str, float] = field(default_factory=dict)
    suppress_missing: bool = False

    @property
    def has_moments(self) -> bool:
        """Whether its values have a mean and an SD."""
        return self.type in NUMBERS

    @property
    def is_unique(self) -> bool:
        """Whether no value may occur twice."""
        return self.type == "identifier" if self.unique is None else self.unique

    @property
    def texts(self) -> dict[str, str]:
        """Each text that a category's column may have → its level."""
        synonyms = self.levels if isinstance(self.levels, Mapping) else dict.fromkeys(self.levels, ())
        return {text: level for level, others in synonyms.items() for text in (level, *others)}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A time to an event, for Kaplan-Meier curves.

    No two outcomes share a column: small counts would follow from the bins of both.

    Args:
        time: the column of numbers that has the time to the event, or to the end of observation; or the column of its
            date, which is counted in days from the date that it must follow, `after`.
        event: the category that says which of these it was.
        level: its level of rows with the event; rows of the others are censored.
        ends: of the bins of time (a, b], in whose counts small ones are joined.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    time: str
    event: str
    level: str
    ends: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is known of one site beforehand.

    Args:
        rows: how many rows it has, if it is known from elsewhere, such as its recruitment log.
        lacks: columns that it never measured.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    rows: int | None = None
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """What every site's table must be, see `read_codebook`.

    Args:
        columns: by name, as in the tables' headers.
        study: what the study is called.
        fewest: the least number of rows about which a figure may leave a site.
        missing: texts that stand for a missing value in all columns; capitals and outer spaces do not matter.
        sites: by name, what is known of a site beforehand.
        outcomes: by name, times to events.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    columns: dict[str, Column]
    study: str = ""
    fewest: int = 5
    missing: tuple[str, ...] = ("", "NA", "N/A", "NaN", "null", "None", ".")
    sites: dict[str, Site] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def of_type(self, *types: str) -> list[str]:
        """Names of the columns of these types."""
        return [name for name, column in self.columns.items() if column.type in types]

    def expected_at(self, site: str) -> Site:
        """What is known of a site beforehand; nothing, if the codebook does not have it."""
        return self.sites.get(site, Site())


@checked
def read_codebook(path: str | Path) -> Codebook:
    """Read a codebook.

    Args:
        path: of a TOML file, see `docs/codebook.md`.

    Raises:
        SettingError: the file cannot be read, is not TOML, or has entries that are unknown or contradict each other;
            the message names the entries.

    Example:
        >>> book = pf.codebook.read_codebook("codebook.toml")
        >>> book.columns["age"].unit
        'years'
    """
    path = Path(path)
    return checked_codebook(from_table(Codebook, read_toml(path, "a codebook"), str(path)), str(path))


def checked_codebook(book: Codebook, where: str) -> Codebook:
    """The codebook, if its entries agree with each other; SettingError has all places where they do not."""
    faults = [] if book.columns else ["it has no columns: write a table [columns.NAME] for each"]
    if book.fewest < 2:
        faults.append(f"fewest must be at least 2, received {book.fewest}: figures of one row would be its values")
    for name, column in book.columns.items():
        faults += [f"columns.{name}: {fault}" for fault in _column_faults(name, column, book)]
    for name, site in book.sites.items():
        unknown = [one for one in site.lacks if one not in book.columns]
        faults += [f"sites.{name}.lacks: {one!r} is not a column; {closest(one, book.columns)}" for one in unknown]
    for name, outcome in book.outcomes.items():
        faults += [f"outcomes.{name}: {fault}" for fault in _outcome_faults(outcome, book)]
    for (name, one), (other, two) in combinations(book.outcomes.items(), 2):
        if one.time == two.time or one.event == two.event:
            shared = one.time if one.time == two.time else one.event
            faults.append(
                f"outcomes.{name} and outcomes.{other} share a column, {shared!r}: small counts would follow from the "
                "two together; keep one of them"
            )
    if faults:
        raise SettingError(f"{where}: {'; '.join(faults)}")
    return book


def _outcome_faults(outcome: Outcome, book: Codebook) -> list[str]:
    faults, categories = [], book.of_type("category")
    times = [name for name, column in book.columns.items() if column.has_moments or column.after]
    if outcome.time not in times:
        faults.append(f"time = {outcome.time!r} is neither a column of numbers nor a date with `after`")
    if outcome.event not in categories:
        faults.append(f"event = {outcome.event!r} is not a category; {closest(outcome.event, categories)}")
    elif outcome.level not in book.columns[outcome.event].levels:
        levels = book.columns[outcome.event].levels
        faults.append(f"level = {outcome.level!r} is not a level of {outcome.event}; {closest(outcome.level, levels)}")
    ascending = all(before < after for before, after in pairwise(outcome.ends))
    if not outcome.ends or not ascending or not all(map(isfinite, outcome.ends)):
        faults.append("ends must be the ends of the bins of time, finite and ascending, such as [90, 180, 270]")
    if book.fewest < MIN_ROWS_OF_OUTCOMES:
        faults.append(
            f"fewest must be at least {MIN_ROWS_OF_OUTCOMES}: bins that are joined to reach 2 have a count of 1"
        )
    return faults


def _column_faults(name: str, column: Column, book: Codebook) -> list[str]:
    faults = []
    is_number, is_date, is_category = column.has_moments, column.type == "date", column.type == "category"
    if is_category and len(column.levels) < 2:
        faults.append('a category needs at least two levels, such as levels = ["male", "female"]')
    only_for = {
        "levels": (column.levels and not is_category, "categories"),
        "ordered": (column.ordered and not is_category, "categories"),
        "unit": (column.unit and not is_number, "numbers"),
        "factors": (column.factors and not is_number, "numbers"),
        "after": (column.after and not is_date, "dates"),
        "range": (column.range is not None and not (is_number or is_date), "numbers and dates"),
    }
    faults += [
        f"{key} is for {kinds} only, and the type is {column.type}" for key, (bad, kinds) in only_for.items() if bad
    ]
    if column.range is not None and (is_number or is_date):
        low, high = column.range
        if isinstance(low, datetime.date) != is_date:
            faults.append(f"range must be two {'dates, without quotes' if is_date else 'numbers'}")
        elif not low < high:  # type: ignore[operator]
            faults.append(f"range begins at {low} and ends at {high}: the first must be the smaller one")
    if any(not factor > 0 for factor in column.factors.values()):
        faults.append("factors must be positive: the number of the other unit that makes one")
    if column.after and (column.after == name or column.after not in book.of_type("date")):
        faults.append(f"after = {column.after!r} is not another date column")
    if is_category:
        others = column.levels.values() if isinstance(column.levels, Mapping) else ()
        texts = [*column.levels, *(text for each in others for text in each)]
        twice = sorted({text for text in texts if texts.count(text) > 1})
        if twice:
            faults.append(f"levels: {listed(map(repr, twice))} occurs twice")
    return faults
