"""Units and formats of dates that are taken for each other, and by which factor or shift the values then differ."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import constants

from pyro_fed.codebook.codebook import Column

#: A cause explains a failure if it leaves at most this share of the rows unexplained.
MAX_UNEXPLAINED_SHARE = 0.05
#: Days of a year, on average.
DAYS_OF_A_YEAR = constants.Julian_year / constants.day
#: Units of one kind, by what one of them is in the kind's own unit (second, gram, metre, joule, pascal, one).
KINDS: tuple[dict[str, float], ...] = (
    {
        **{"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0, "weeks": 604800.0},
        **{"months": 86400 * DAYS_OF_A_YEAR / 12, "years": 86400 * DAYS_OF_A_YEAR},
    },
    {"mg": 1e-3, "g": 1.0, "ounces": 28.349523125, "pounds": 453.59237, "kg": 1e3, "stone": 6350.29318},
    {"mm": 1e-3, "cm": 1e-2, "inches": 0.0254, "feet": 0.3048, "m": 1.0, "km": 1e3, "miles": 1609.344},
    {"J": 1.0, "cal": 4.184, "kJ": 1e3, "kcal": 4184.0},
    {"Pa": 1.0, "mmHg": 133.322, "kPa": 1e3},
    {"percent": 0.01, "proportion": 1.0},
)
#: Other names of units.
NAMES = {
    **{"s": "seconds", "sec": "seconds", "min": "minutes", "h": "hours", "d": "days", "wk": "weeks"},
    **{"year": "years", "yr": "years", "month": "months", "week": "weeks", "day": "days", "hour": "hours"},
    **{"lb": "pounds", "lbs": "pounds", "pound": "pounds", "oz": "ounces", "st": "stone"},
    **{"kilograms": "kg", "grams": "g"},
    **{"in": "inches", "inch": "inches", "ft": "feet", "metres": "m", "meters": "m", "mm Hg": "mmHg", "%": "percent"},
}
#: Names in a sentence of units that are written as symbols.
IN_WORDS = {
    **{"kg": "kilograms", "g": "grams", "mg": "milligrams"},
    **{"cm": "centimetres", "m": "metres", "mm": "millimetres"},
}
#: Chance of a false alarm of each check that is a test.
FALSE_ALARM_CHANCE = 1e-4
#: Chance of a coincidence that explains what needs an explanation in any case.
COINCIDENCE_CHANCE = 0.01
#: Scales of one unit with and without a prefix, such as mg/L and g/L.
PREFIXES = (10.0, 100.0, 1e3, 1e6)


class Confusion(NamedTuple):
    """A site's values are `offset` + `factor` times those in the codebook's unit: a named unit, or a power of ten."""

    factor: float
    name: str
    offset: float = 0.0
    is_named: bool = True

    @property
    def text(self) -> str:
        """The factor and its name, for a sentence: "12 times too large (months for years)"."""
        size = self.factor if self.factor > 1 else 1 / self.factor
        times = f"{size:.4g} times too {'large' if self.factor > 1 else 'small'}"
        if self.offset:
            return f"{self.factor:.4g} times the values plus {self.offset:.4g} ({self.name})"
        return f"{times} ({self.name})" if self.name else times


def confusions(column: Column) -> list[Confusion]:
    """How the numbers of a column may be in another unit: the unit's own kind, its `factors`, and powers of ten."""
    unit = NAMES.get(column.unit, column.unit)
    kind = next((kind for kind in KINDS if unit in kind), {})
    named = [
        Confusion(kind[unit] / size, f"{IN_WORDS.get(other, other)} for {IN_WORDS.get(unit, unit)}")
        for other, size in kind.items()
        if other != unit
    ]
    named += [Confusion(factor, f"{other} for {column.unit or 'the unit'}") for other, factor in column.factors.items()]
    if unit in ("°C", "C", "celsius"):
        named.append(Confusion(1.8, "Fahrenheit for Celsius", 32.0))
    if unit in ("°F", "F", "fahrenheit"):
        named.append(Confusion(1 / 1.8, "Celsius for Fahrenheit", -32 / 1.8))
    taken = [one.factor for one in named]
    powers = [Confusion(size, "another unit or prefix", is_named=False) for ten in PREFIXES for size in (ten, 1 / ten)]
    return named + [one for one in powers if not any(abs(one.factor / factor - 1) < 0.05 for factor in taken)]


def unit_of_whole_numbers(values: np.ndarray, column: Column) -> str:
    """The unit in which rounded fractions would all be whole numbers, if chance does not explain it; else no text."""
    distinct = np.unique(values[values != 0])
    decimals = next((d for d in range(4) if np.allclose(distinct, distinct.round(d), rtol=0, atol=1e-9)), None)
    if not len(distinct) or not decimals:
        return ""
    named = [one for one in confusions(column) if one.is_named]
    for one in named:
        meant = (distinct - one.offset) / one.factor
        rounding = 0.5 * 10.0**-decimals / one.factor
        by_chance = len(named) * min(1.0, 2 * rounding) ** len(distinct)
        if by_chance < COINCIDENCE_CHANCE and (abs(meant - meant.round()) <= 1.001 * rounding).all():
            return one.text
    return ""


# -- Dates --------------------------------------------------------------------------------------------------------

#: How dates are usually written.
FORMATS = (
    *("%Y-%m-%d", "%Y-%d-%m", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y%m%d"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%Y-%m-%d %H:%M:%S"),
    *("%Y-%m-%dT%H:%M:%S", "%d/%m/%Y %H:%M"),
)
#: Parts of a format in words.
WORDS = {"%Y": "year", "%y": "year of two digits", "%m": "month", "%d": "day", "%b": "month's name"}
#: Shifts of whole columns of dates, in days, the most usual first.
SHIFTS = [
    Confusion(1.0, f"{name} too {'late' if sign > 0 else 'early'}", sign * size)
    for size, name in (
        (100 * DAYS_OF_A_YEAR, "100 years"),
        (1462, "4 years (as between the 1900 and 1904 dates of spreadsheets)"),
        *((years * DAYS_OF_A_YEAR, f"{years} year{'s' * (years > 1)}") for years in (1, 10, 2, 3, 5, 20, 50)),
    )
    for sign in (1, -1)
]


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
    for shift in SHIFTS:
        meant = days - shift.offset
        if ((meant < low - 1) | (meant > high + 1)).mean() <= MAX_UNEXPLAINED_SHARE:
            return shift.name
    return ""


def days_of(dates: pd.Series) -> np.ndarray:
    """Days since 1970-01-01, (n,)."""
    return np.asarray(dates.astype("datetime64[s]").astype("int64"), float) / 86400
