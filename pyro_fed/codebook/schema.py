"""The codebook as a schema of pandera, which checks a table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from pyro_fed.codebook.codebook import Codebook, Column
from pyro_fed.codebook.plain import check_installed
from pyro_fed.conventions.calls import checked

if TYPE_CHECKING:
    from pandera.pandas import DataFrameSchema


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
            _dtype(column),
            _checks(column),
            nullable=not column.complete,
            unique=column.is_unique,
            required=not (column.optional or name in lacks),
        )
        for name, column in codebook.columns.items()
    }
    orders = [_in_order(name, column.after) for name, column in codebook.columns.items() if column.after]
    return pa.DataFrameSchema(columns, checks=orders)


def _dtype(column: Column) -> Any:
    return "datetime64[s]" if column.type == "date" else float if column.has_moments else object


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
