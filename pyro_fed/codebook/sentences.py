"""Every sentence of a finding about a site's table. A function's name is the code, its arguments are the figures.

Doubts contradict the codebook, notes are suspicions that it leaves open. A site's summary has codes and figures only,
and the sentences are written anew where they are read: no sentence has a value of a row. `rows` is a word, see `share`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyro_fed.codes.finding import Finding, Sentence, Topic, doubt, note
from pyro_fed.errors import listed


def share(count: int, total: int, fewest: int) -> str:
    """How many of a table's rows, in a word that neither tells a small count nor that of the other rows."""
    if count == total:
        return "all"
    if count < fewest:
        return "few"
    return "most" if 2 * count > total else "some"


# -- The file -----------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def ragged_rows(rows: str) -> str:
    """Lines with more or fewer fields than the header."""
    return f"{rows} rows have another number of fields than the header: the file is damaged, or a text has a separator"


@doubt(Topic.CODEBOOK)
def file_cut_off() -> str:
    """The last line has too few fields and no end."""
    return "the file ends within a row: it was cut off, and rows are missing"


@doubt(Topic.CODEBOOK)
def other_number_of_rows(expected: int, more: bool) -> str:
    """The codebook knows how many rows the site has."""
    what = "more rows: some occur twice, or do not belong to the site" if more else "fewer rows: it was cut off"
    return f"the codebook expects {expected} rows of this site, and the table has {what}"


@note(Topic.CODEBOOK)
def at_export_limit(limit: int) -> str:
    """The number of rows is the most that a program exports."""
    return f"the table has exactly {limit} rows, where some programs cut tables off"


@doubt(Topic.CODEBOOK)
def rows_twice(rows: str, whole: bool) -> str:
    """Rows that are equal in every column."""
    if whole:
        return "every row occurs more than once, equal in every column: a table was joined or appended twice"
    return f"{rows} rows repeat another row in every column: a join has doubled them"


# -- Columns ------------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def column_absent(column: str, named: str = "") -> str:
    """A column of the codebook is not in the table; `named` says how its name may be written there."""
    return f"the table has no column {column!r}" + (f"; a column's name is {named}" if named else "")


@doubt(Topic.CODEBOOK)
def column_empty(column: str) -> str:
    """All values are missing."""
    return f"{column}: all values are missing"


@doubt(Topic.CODEBOOK)
def values_missing(column: str, rows: str) -> str:
    """Values are missing where the codebook wants all."""
    return f"{column}: values are missing in {rows} rows, and the codebook says complete = true"


@doubt(Topic.CODEBOOK)
def not_unique(column: str, rows: str) -> str:
    """An identifier occurs several times."""
    return f"{column}: {rows} rows have a value that another row has, and the codebook says that it is unique"


@note(Topic.CODEBOOK)
def constant(column: str) -> str:
    """All rows have one value."""
    return f"{column}: all rows have the same value; check the export, or leave the column out of this site's model"


# -- Numbers ------------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def not_numbers(column: str, rows: str, decimal_comma: bool) -> str:
    """Texts in a column of numbers."""
    why = "a comma as decimal point" if decimal_comma else "text, such as a unit or a limit of detection"
    return f"{column}: {rows} rows have {why} where a number is expected"


@doubt(Topic.CODEBOOK)
def not_whole(column: str, rows: str, factor: str = "") -> str:
    """Fractions in a column of whole numbers; `factor` is the unit in which they would be whole."""
    why = f": {factor}, with which they would be whole" if factor else ""
    return f"{column}: {rows} rows are not whole numbers{why}"


@doubt(Topic.CODEBOOK)
def out_of_range(column: str, rows: str) -> str:
    """Numbers or dates outside the codebook's range."""
    return f"{column}: {rows} rows are outside the codebook's range"


@doubt(Topic.CODEBOOK)
def in_another_unit(column: str, factor: str) -> str:
    """Numbers outside the range that another unit explains."""
    return f"{column}: the values are outside the codebook's range because they are {factor}"


@doubt(Topic.CODEBOOK)
def in_unknown_unit(column: str) -> str:
    """Numbers outside the range that several powers of ten explain."""
    return (
        f"{column}: the values are outside the codebook's range by a power of ten: they are in another unit or have "
        "another prefix"
    )


@doubt(Topic.CODEBOOK)
def missing_code(column: str, rows: str, missing: str) -> str:
    """A code for missing values that the codebook does not have, among the values."""
    return (
        f"{column}: {rows} rows have {missing}, which looks like a code for a missing value but is taken as a value; "
        f"if it is a code, write missing = [{missing}] at columns.{column} of the codebook"
    )


# -- Categories ---------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def unknown_levels(column: str, rows: str, how: str = "") -> str:
    """Texts that are none of the codebook's levels; `how` says in which way they differ from these."""
    why = f": {how}" if how else ""
    return f"{column}: {rows} rows have a level that the codebook does not have{why}"


# -- Dates --------------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def not_dates(column: str, rows: str, format: str = "") -> str:
    """Texts in a column of dates; `format` is one that all of them have."""
    why = f"; they are written as {format}" if format else ""
    return f"{column}: {rows} rows are not dates in the codebook's format{why}"


@doubt(Topic.CODEBOOK)
def day_and_month_swapped(column: str, rows: str) -> str:
    """Dates whose order or range is right once day and month are swapped."""
    return f"{column}: day and month are swapped in {rows} rows"


@note(Topic.CODEBOOK)
def no_late_days(column: str) -> str:
    """No date is after the 12th of a month."""
    return (
        f"{column}: no date is after the 12th of its month: day and month were swapped, and dates that cannot be "
        "swapped were dropped"
    )


@doubt(Topic.CODEBOOK)
def dates_shifted(column: str, shift: str) -> str:
    """Dates outside the range that a shift explains."""
    return f"{column}: the dates are outside the codebook's range because they are {shift}"


@doubt(Topic.CODEBOOK)
def dates_in_wrong_order(column: str, other: str, rows: str) -> str:
    """Dates before those that they must follow."""
    return f"{column}: {rows} rows are before {other}"


# -- Between sites ------------------------------------------------------------------------------------------------


@doubt(Topic.CODEBOOK)
def other_codebook(sites: Sequence[str]) -> str:
    """Summaries by another codebook."""
    return f"the summary was made by another codebook than those of {listed(sites)}: check the table again with theirs"


@note(Topic.CODEBOOK)
def scale_differs(column: str, factor: str) -> str:
    """The values are those of the other sites in another unit."""
    return f"{column}: compared with the other sites, the values are {factor}"


@note(Topic.CODEBOOK)
def units_mixed(column: str, factor: str) -> str:
    """A part of the values is those of the other sites in another unit."""
    return (
        f"{column}: compared with the other sites, a part of the values is {factor}; a second group of patients at "
        "this site alone can look so, too: look at the rows, by device or date of entry"
    )


@note(Topic.CODEBOOK)
def time_differs(column: str, shift: str) -> str:
    """The dates are those of the other sites with a shift."""
    return f"{column}: compared with the other sites, the dates are {shift}"


@note(Topic.CODEBOOK)
def distribution_differs(column: str, mean: str, sd: str) -> str:
    """Mean or SD is far from those of the other sites, and no unit explains it."""
    return f"{column}: the mean is {mean} and the SD {sd} those of the other sites, and no usual unit explains it"


@note(Topic.CODEBOOK)
def same_table() -> str:
    """Two sites have the same figures in all columns."""
    return "both have the same figures in every column: one of them may have checked the other's table"


@note(Topic.CODEBOOK)
def decimals_differ(column: str, decimals: int, factor: str = "") -> str:
    """Numbers have decimals, which are whole at all other sites; `factor` is the unit in which they would be, too."""
    why = f": they would be, too, if they are {factor}" if factor else ": are they converted from another unit?"
    return f"{column}: the numbers have {decimals} decimal(s), and are whole at all other sites{why}"


@note(Topic.CODEBOOK)
def levels_exchanged(column: str, levels: Sequence[str], by: Sequence[str]) -> str:
    """Levels have the rates and means that other levels have at the other sites."""
    return (
        f"{column}: the levels {' and '.join(map(repr, levels))} look exchanged, by their relation to {listed(by)} "
        "at the other sites"
    )


@note(Topic.CODEBOOK)
def levels_reversed(column: str, by: Sequence[str]) -> str:
    """The order of the levels looks reversed."""
    return f"{column}: the levels look numbered in reversed order, by their relation to {listed(by)} at the other sites"


@note(Topic.CODEBOOK)
def never_missing(column: str) -> str:
    """No value is missing at this site, and many at all others."""
    return f"{column}: no value is missing, but many are at all other sites: a missing value may be recorded as a value"


#: Code → the sentence.
SENTENCES: Final[Mapping[str, Sentence[Any]]] = {
    name: one for name, one in list(vars().items()) if isinstance(one, Sentence)
}


def as_finding(code: str, figures: Mapping[str, Any]) -> Finding:
    """The finding of a code with its figures, its text written anew."""
    return SENTENCES[code](**figures)
