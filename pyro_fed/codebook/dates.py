"""Formats of dates, swapped days and months, and shifts by which whole columns of dates are wrong."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from pyro_fed.codebook.codebook import Column

#: How dates are usually written.
FORMATS = (
    *("%Y-%m-%d", "%Y-%d-%m", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y%m%d"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%Y-%m-%d %H:%M:%S"),
    *("%Y-%m-%dT%H:%M:%S", "%d/%m/%Y %H:%M"),
)
#: Parts of a format in words.
WORDS = {"%Y": "year", "%y": "year of two digits", "%m": "month", "%d": "day", "%b": "month's name"}
#: Days of a year, on average; days between the two epochs of spreadsheets (1900 and 1904).
YEAR, EPOCHS = 365.25, 1462
#: Shifts of whole columns, in days, the most usual first, and their names.
SHIFTS = (
    (100 * YEAR, "100 years"),
    (EPOCHS, "4 years (as between the 1900 and 1904 dates of spreadsheets)"),
    *((years * YEAR, f"{years} year{'s' * (years > 1)}") for years in (1, 10, 2, 3, 5, 20, 50)),
)


def format_of(texts: pd.Series, expected: str) -> str:
    """The format that all texts have, the swapped one of the expected first; an empty text if there is none."""
    for one in dict.fromkeys((swapped_format(expected), *FORMATS)):
        if pd.to_datetime(texts, format=one, errors="coerce").notna().all():
            return one
    return ""


def swapped_format(form: str) -> str:
    """A format with day and month exchanged."""
    return form.translate(str.maketrans("dm", "md"))


def format_in_words(form: str) -> str:
    """A format as a reader would say it: "day/month/year"."""
    words = re.sub(r"%[YymdbHMS]", lambda part: WORDS.get(part[0], "time"), form)
    return re.sub(r"[ T]?time(:time)*", " and time", words)


def swapped(dates: pd.Series) -> pd.Series:
    """Dates with day and month exchanged where that is a date; others as they are."""
    parts = pd.DataFrame({"year": dates.dt.year, "month": dates.dt.day, "day": dates.dt.month})
    exchanged = pd.to_datetime(parts.where(parts["month"] <= 12), errors="coerce").astype(dates.dtype)
    return exchanged.where(exchanged.notna(), dates)


def date_shift(dates: pd.Series, column: Column) -> str:
    """The shift without which nearly all dates would be in range, in words; an empty text if there is none."""
    if column.range is None or not len(dates):
        return ""
    days = days_of(dates)
    low, high = days_of(pd.Series([pd.Timestamp(end) for end in column.range]))
    for size, name in SHIFTS:
        for sign, where in ((1, "late"), (-1, "early")):
            meant = days - sign * size
            if ((meant < low - 1) | (meant > high + 1)).mean() <= 0.05:
                return f"{name} too {where}"
    return ""


def days_of(dates: pd.Series) -> np.ndarray:
    """Days since 1970-01-01, (n,)."""
    return np.asarray(dates.astype("datetime64[s]").astype("int64"), float) / 86400
