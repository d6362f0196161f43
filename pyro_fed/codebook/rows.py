"""A site's table: its texts as in the file, its columns in the codebook's types, and pandera's schema of these."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyro_fed.codebook.codebook import Codebook, Column, check_installed, reason
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import DataError, listed

if TYPE_CHECKING:
    from pandera.pandas import DataFrameSchema


#: What separates the fields of a line.
SEPARATORS = ",;\t|"


@dataclass(frozen=True, eq=False)
class Table:
    """A table as texts."""

    texts: pd.DataFrame  # a column for each of the header, without outer spaces
    numbers: np.ndarray  # of the rows for a message: the lines of a file, or 1, 2, ... of a frame, (n,)
    ragged: tuple[int, ...] = ()  # lines with another number of fields than the header, not among the texts
    is_cut_off: bool = False  # the file ends within its last row, which is not among the texts either
    called: str = "row"  # what a row's number counts, "line" or "row"


def read_table(source: Any) -> Table:
    """The table of a CSV file or a frame."""
    return _of_frame(source) if isinstance(source, pd.DataFrame) else _of_file(Path(source))


def _of_frame(frame: pd.DataFrame) -> Table:
    _check_header(frame.columns, "the data frame")
    texts = {str(name): [_as_text(value) for value in frame[name]] for name in frame.columns}
    return Table(pd.DataFrame(texts, index=range(len(frame)), dtype=str), np.arange(1, len(frame) + 1))


def _as_text(value: Any) -> str:
    if value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, pd.Timestamp) and value == value.normalize():
        return str(value.date())
    return str(value).strip()


def _of_file(path: Path) -> Table:
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}): save it as CSV in UTF-8") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error
    first = content.partition("\n")[0]
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator)
    try:
        header = [name.strip() for name in next(reader, [])]
        found = [(reader.line_num, [text.strip() for text in fields]) for fields in reader if fields]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    if not any(header):
        raise DataError(f"{path} is empty: expected the names of the columns in its first line")
    _check_header(header, str(path))
    width = len(header)
    is_cut_off = bool(found) and len(found[-1][1]) < width and not content.endswith("\n")
    found = found[: len(found) - is_cut_off]
    rows = [(line, fields) for line, fields in found if len(fields) == width]
    texts = pd.DataFrame([fields for _, fields in rows], columns=header, dtype=str)
    ragged = tuple(line for line, fields in found if len(fields) != width)
    return Table(texts, np.array([line for line, _ in rows], int), ragged, is_cut_off, "line")


def _check_header(names: Iterable[Any], where: str) -> None:
    names = list(map(str, names))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has columns of the same name, {listed(map(repr, twice))}: rename or drop them")


@dataclass(frozen=True, eq=False)
class TypedTable:
    """A table's columns in the codebook's types (unknown levels stay), and rows with unreadable texts by column."""

    frame: pd.DataFrame
    unreadable: dict[str, np.ndarray]


def typed_table(table: Table, book: Codebook) -> TypedTable:
    """The codebook's columns of a table in their types."""
    columns, unreadable = {}, {}
    for name, column in book.columns.items():
        if name in table.texts:
            texts = table.texts[name]
            there = ~is_missing(texts, column, book)
            columns[name] = values = _typed_values(texts.where(there, None), column)
            unreadable[name] = (there & values.isna()).to_numpy(bool)
    return TypedTable(pd.DataFrame(columns, index=table.texts.index), unreadable)


def is_missing(texts: pd.Series, column: Column, book: Codebook) -> pd.Series:
    """Which texts stand for missing values, (n,)."""
    codes = {whole_number_text(str(code)).casefold() for code in (*book.missing, *column.missing)}
    return texts.map(lambda text: whole_number_text(text).casefold() in codes).astype(bool)


def whole_number_text(text: str) -> str:
    """A text, whole numbers without decimals: "1.0" as "1"."""
    try:
        return str(int(float(text))) if float(text).is_integer() else text
    except (ValueError, OverflowError):
        return text


def _typed_values(texts: pd.Series, column: Column) -> pd.Series:
    if column.has_moments:
        numbers = pd.to_numeric(texts, errors="coerce").astype(float)
        return numbers.where(np.isfinite(numbers))
    if column.type == "date":
        return pd.to_datetime(texts, format=column.format, errors="coerce").astype("datetime64[s]")
    if column.type == "category":
        known = {whole_number_text(text): level for text, level in column.texts.items()} | column.texts
        return texts.map(
            lambda text: known.get(text, known.get(whole_number_text(text), text)), na_action="ignore"
        ).astype(object)
    return texts.astype(object)


@checked
def schema(codebook: Codebook, site: str = "") -> DataFrameSchema:
    """The codebook as a schema of pandera, for tables whose columns have the codebook's types.

    Args:
        codebook: of `read_codebook`.
        site: whose table it is, for the columns that it lacks.

    Raises:
        SettingError: pandera is not installed.

    Example:
        >>> list(pf.codebook.schema(book).columns)[:2]
        ['patient', 'age']
    """
    check_installed()
    import pandera.pandas as pa

    lacks = codebook.expected_at(site).lacks
    columns = {
        name: pa.Column(
            "datetime64[s]" if column.type == "date" else float if column.has_moments else object,
            _checks(column),
            nullable=not column.complete,
            unique=column.is_unique,
            required=not (column.optional or name in lacks),
        )
        for name, column in codebook.columns.items()
    }
    orders = [_in_order(name, column.after) for name, column in codebook.columns.items() if column.after]
    return pa.DataFrameSchema(columns, checks=orders)


def _checks(column: Column) -> list[Any]:
    import pandera.pandas as pa

    checks = []
    if column.range is not None:
        low, high = (pd.Timestamp(end) if column.type == "date" else end for end in column.range)
        checks.append(pa.Check.in_range(low, high, error="range"))
    if column.type == "integer":
        checks.append(pa.Check(lambda values: values % 1 == 0, error="whole"))
    if column.type == "category":
        checks.append(pa.Check.isin(list(column.levels), error="levels"))
    return checks


def _in_order(name: str, other: str) -> Any:
    """A check of whole rows: a date is not before the other one."""
    import pandera.pandas as pa

    def follows(frame: pd.DataFrame) -> pd.Series:
        if name not in frame or other not in frame:
            return pd.Series(True, index=frame.index)
        return ~(frame[name] < frame[other])

    return pa.Check(follows, error=f"after {name}", ignore_na=False)


def failures(frame: pd.DataFrame, codebook: Codebook, site: str) -> dict[tuple[str, str], list[int]]:
    """Positions of the rows that fail each check of a column: by (check, column), in order."""
    import pandera.errors

    try:
        schema(codebook, site).validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        found: dict[tuple[str, str], set[int]] = {}
        for case in error.failure_cases.to_dict("records"):
            check = str(case["check"])
            if check == "column_in_dataframe":
                found.setdefault(("absent", str(case["failure_case"])), set())
            elif check.startswith("after "):
                found.setdefault(("after", check.removeprefix("after ")), set()).add(int(case["index"]))
            else:
                found.setdefault((check, str(case["column"])), set()).add(int(case["index"]))
        return {key: sorted(rows) for key, rows in found.items()}
    return {}
