"""Tables of hospitals of a study, made by seed, and faults that data managers make in them.

Hospitals differ as hospitals do: in their patients' ages, weights and blood counts (a third of an SD), shares of women
and smokers, mortality, periods of recruitment, missing values and numbers of patients (40 to 400).

    python tests/helpers/hospital_tables.py --seeds 30        how many faults are named, and which are not
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import pyro_fed as pf

HOSPITALS = ("albany", "boston", "chicago", "dayton", "elgin")

CODEBOOK = """
study = "five hospitals"
fewest = 5

[columns.patient]
type = "identifier"

[columns.age]
type = "integer"
unit = "years"
range = [18, 105]

[columns.sex]
type = "category"
levels = ["male", "female"]

[columns.height]
type = "number"
unit = "cm"
range = [120, 220]

[columns.weight]
type = "number"
unit = "kg"
range = [30, 250]

[columns.temperature]
type = "number"
unit = "°C"
range = [33, 43]

[columns.haemoglobin]
type = "number"
unit = "g/dL"
range = [3, 25]

[columns.creatinine]
type = "number"
unit = "µmol/L"
range = [10, 2000]
factors = { "mg/dL" = 0.01131 }

[columns.crp]
title = "C-reactive protein"
type = "number"
unit = "mg/L"
range = [0, 1000]

[columns.ecog]
type = "category"
levels = ["0", "1", "2", "3", "4"]
ordered = true

[columns.smoker]
type = "category"
levels = ["never", "former", "current"]

[columns.died]
type = "category"
levels = ["no", "yes"]

[columns.entry]
type = "date"
range = [2010-01-01, 2026-12-31]

[columns.exit]
type = "date"
range = [2010-01-01, 2026-12-31]
after = "entry"

[outcomes.death]
time = "exit"
event = "died"
level = "yes"
ends = [90, 180, 365, 730]
"""


def table(seed, hospital, size=None):
    """A clean table of one hospital."""
    rng = np.random.default_rng([seed, HOSPITALS.index(hospital)])
    n = size or int(rng.integers(40, 400))
    older, heavier, thinner_blood, kidneys = rng.normal(0, [4, 4, 0.4, 0.12])
    female = rng.random(n) < _logistic(rng.normal(0, 0.4))
    age = np.clip(rng.normal(62 + older, 12, n), 19, 97).round()
    height = (176 - 13 * female + rng.normal(0, 7, n)).round()
    weight = (72 + heavier + 0.9 * (height - 170) + rng.normal(0, 12, n)).clip(38, 180).round(1)
    temperature = (36.8 + rng.gamma(2, 0.3, n)).round(1)
    haemoglobin = (13.8 + thinner_blood - 1.4 * female + rng.normal(0, 1.4, n)).round(1)
    creatinine = np.exp(4.3 + kidneys + 0.006 * (age - 60) - 0.25 * female + rng.normal(0, 0.3, n)).round()
    crp = np.exp(rng.normal(2.0 + rng.normal(0, 0.2), 1.2, n)).clip(0.3, 400).round(1)
    ecog = np.clip(rng.poisson(0.8 * np.exp(0.02 * (age - 62))), 0, 4)
    smoking = rng.random(n) + 0.3 * female + rng.normal(0, 0.05)
    smoker = np.select([smoking < 0.35, smoking < 0.75], ["current", "former"], "never")
    risk = -0.6 + rng.normal(0, 0.5) + 0.5 * (ecog - 1) + 0.03 * (age - 62) + 0.04 * crp.clip(0, 60) - 0.5
    died = rng.random(n) < _logistic(risk)
    start = pd.Timestamp("2018-03-01") + pd.Timedelta(days=int(rng.normal(0, 120)))
    entry = start + pd.to_timedelta(rng.integers(0, 730, n), unit="D")
    exits = entry + pd.to_timedelta(rng.exponential(300, n).clip(1, 1500).astype(int), unit="D")
    frame = pd.DataFrame(
        {
            "patient": [f"{hospital[:2].upper()}{i:04d}" for i in rng.permutation(n)],
            "age": age.astype(int).astype(str),
            "sex": np.where(female, "female", "male"),
            "height": height.astype(int).astype(str),
            "weight": weight.astype(str),
            "temperature": temperature.astype(str),
            "haemoglobin": haemoglobin.astype(str),
            "creatinine": creatinine.astype(int).astype(str),
            "crp": crp.astype(str),
            "ecog": ecog.astype(str),
            "smoker": smoker,
            "died": np.where(died, "yes", "no"),
            "entry": entry.strftime("%Y-%m-%d"),
            "exit": exits.strftime("%Y-%m-%d"),
        }
    ).astype(object)
    for name, most in {"haemoglobin": 0.15, "crp": 0.3, "smoker": 0.05, "weight": 0.05}.items():
        frame.loc[rng.random(n) < rng.uniform(0.01, most), name] = ""
    return frame.iloc[:, rng.permutation(frame.shape[1])]


def _logistic(x):
    return 1 / (1 + np.exp(-x))


# -- Faults -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of one hospital's table.

    Attributes:
        name: what was done.
        column: in which column, or none.
        plant: (frame, generator) → the table with it: a frame, or the text of a CSV file.
        codes: of the findings that name it.
        says: a piece of the finding's text.
        codebook: entries added to the codebook.
    """

    name: str
    column: str
    plant: Callable
    codes: tuple[str, ...]
    says: str = ""
    codebook: str = ""


def numbers(column, change, decimals=None):
    def plant(frame, rng):
        values = pd.to_numeric(frame[column])
        changed = change(values, rng)
        changed = changed if decimals is None else changed.round(decimals)
        return frame.assign(**{column: changed.map(lambda x: "" if np.isnan(x) else f"{x:g}")})

    return plant


def texts(column, change):
    return lambda frame, rng: frame.assign(**{column: frame[column].map(change)})


def dates(column, change):
    """`change` of the dates, (n,) → texts or dates."""

    def plant(frame, rng):
        changed = change(pd.Series(pd.to_datetime(frame[column])))
        return frame.assign(**{column: changed if changed.dtype == object else changed.dt.strftime("%Y-%m-%d")})

    return plant


def both_dates(change):
    def plant(frame, rng):
        return dates("exit", change)(dates("entry", change)(frame, rng), rng)

    return plant


def some(share, value):
    def change(values, rng):
        return values.where(rng.random(len(values)) >= share, value)

    return change


def spreadsheet(days):
    """A spreadsheet of another country swaps day and month where it can."""
    return pd.Series([d.replace(day=d.month, month=d.day) if d.day <= 12 else d for d in days], index=days.index)


def century_early(days):
    return days - pd.DateOffset(years=100)


def written(form):
    return lambda days: days.dt.strftime(form).astype(object)


def joined_twice(frame, rng):
    return pd.concat([frame, frame], ignore_index=True)


def some_joined_twice(frame, rng):
    return pd.concat([frame, frame.sample(8, random_state=1)], ignore_index=True)


def joined_with_new_numbers(frame, rng):
    again = frame.sample(8, random_state=1)
    return pd.concat([frame, again.assign(patient=[f"NEW{i}" for i in range(8)])], ignore_index=True)


def cut_off(frame, rng):
    return frame.to_csv(index=False)[: -len(frame.iloc[-1].str.cat()) // 2]


def another_separator_in_a_text(frame, rng):
    lines = frame.to_csv(index=False).split("\n")
    lines[3:5] = [f"{line},see notes" for line in lines[3:5]]
    return "\n".join(lines)


EXCHANGED = {"male": "female", "female": "male", "yes": "no", "no": "yes"}
SITE_UNKNOWN, SITE_SCALE = ("unknown_levels",), ("in_another_unit", "scale_differs")

FAULTS = [
    Fault("months for years", "age", numbers("age", lambda x, _: 12 * x), SITE_SCALE, "months for years"),
    Fault("days for years", "age", numbers("age", lambda x, _: 365.25 * x, 0), SITE_SCALE, "days for years"),
    Fault("pounds for kilograms", "weight", numbers("weight", lambda x, _: 2.20462 * x, 1), SITE_SCALE, "pounds for"),
    Fault("grams for kilograms", "weight", numbers("weight", lambda x, _: 1000 * x), SITE_SCALE, "grams for kilograms"),
    Fault("inches for centimetres", "height", numbers("height", lambda x, _: x / 2.54, 0), SITE_SCALE, "inches for"),
    Fault("metres for centimetres", "height", numbers("height", lambda x, _: x / 100), SITE_SCALE, "metres for"),
    Fault("Fahrenheit", "temperature", numbers("temperature", lambda x, _: 1.8 * x + 32, 1), SITE_SCALE, "Fahrenheit"),
    Fault("g/L for g/dL", "haemoglobin", numbers("haemoglobin", lambda x, _: 10 * x), SITE_SCALE, "10 times too large"),
    Fault("mg/dL for µmol/L", "creatinine", numbers("creatinine", lambda x, _: 0.01131 * x, 2), SITE_SCALE, "mg/dL"),
    Fault("mmol/L for µmol/L", "creatinine", numbers("creatinine", lambda x, _: x / 1000), SITE_SCALE, "1000 times"),
    Fault("µg/L for mg/L", "crp", numbers("crp", lambda x, _: 1000 * x), SITE_SCALE, "1000 times too large"),
    Fault("M and F", "sex", texts("sex", lambda x: x[0].upper()), SITE_UNKNOWN, "abbreviate"),
    Fault("capitals and spaces", "sex", texts("sex", lambda x: f"{x.capitalize()} "), SITE_UNKNOWN, "capitals"),
    Fault("1 and 2", "sex", texts("sex", lambda x: {"male": "1", "female": "2"}[x]), SITE_UNKNOWN, "numbers"),
    Fault("sexes exchanged", "sex", texts("sex", EXCHANGED.get), ("levels_exchanged",), "'male' and 'female'"),
    Fault("deaths exchanged", "died", texts("died", EXCHANGED.get), ("levels_exchanged",), "'no' and 'yes'"),
    Fault("scale reversed", "ecog", texts("ecog", lambda x: str(4 - int(x))), ("levels_reversed",), "reversed"),
    Fault("joined twice", "", joined_twice, ("rows_twice",), "every row"),
    Fault("partly joined twice", "patient", some_joined_twice, ("not_unique",), "unique"),
    Fault("joined with new numbers", "", joined_with_new_numbers, ("rows_twice",), "repeat another row"),
    Fault("day and month exchanged", "entry", dates("entry", written("%Y-%d-%m")), ("day_and_month_swapped",)),
    Fault("exchanged where possible", "entry", dates("entry", spreadsheet), ("day_and_month_swapped",)),
    Fault("day/month/year", "exit", dates("exit", written("%d/%m/%Y")), ("not_dates",), "day/month/year"),
    Fault("1918 for 2018", "entry", dates("entry", century_early), ("dates_shifted",), "100 years"),
    Fault("1904 dates", "entry", both_dates(lambda d: d - pd.Timedelta(days=1462)), ("time_differs",), "1904"),
    Fault("exit before entry", "exit", dates("exit", lambda d: d - pd.Timedelta(days=250)), ("dates_in_wrong_order",)),
    Fault("one sex only", "sex", texts("sex", lambda _: "male"), ("constant",)),
    Fault("one temperature", "temperature", texts("temperature", lambda _: "36.5"), ("constant",)),
    Fault("99 for a missing age", "age", numbers("age", some(0.1, 999)), ("missing_code",), "999"),
    Fault("-9 for a missing weight", "weight", numbers("weight", some(0.1, -9)), ("missing_code",), "-9"),
    Fault("999 for a missing CRP", "crp", numbers("crp", some(0.1, 999)), ("missing_code",), "999"),
    Fault("99 for a missing weight", "weight", numbers("weight", some(0.2, 99)), ("missing_code",), "99"),
    Fault("9 for a missing score", "ecog", lambda f, rng: f.assign(ecog=f["ecog"].where(rng.random(len(f)) > 0.1, "9")),
          SITE_UNKNOWN, "numbers"),
    Fault("a column is lacking", "weight", lambda frame, _: frame.drop(columns="weight"), ("column_absent",)),
    Fault("another name", "crp", lambda f, _: f.rename(columns={"crp": "CRP "}), ("column_absent",), "capitals"),
    Fault("an empty column", "smoker", texts("smoker", lambda _: ""), ("column_empty",)),
    Fault("limits of detection", "crp", lambda f, rng: f.assign(crp=f["crp"].where(rng.random(len(f)) > 0.2, "<5")),
          ("not_numbers",), "limit of detection"),
    Fault("decimal commas", "weight", texts("weight", lambda x: x.replace(".", ",")), ("not_numbers",), "comma"),
    Fault("the file is cut off", "", cut_off, ("file_cut_off",)),
    Fault("a text with a comma", "", another_separator_in_a_text, ("ragged_rows",)),
    Fault("the last rows are lacking", "", lambda frame, _: frame.iloc[:-15], ("other_number_of_rows",), "fewer"),
]  # fmt: skip


# -- Counting -----------------------------------------------------------------------------------------------------


def summaries_with(fault, book, frames, hospital, clean, folder, seed):
    """The summaries of all hospitals, one with a planted fault."""
    planted = fault.plant(frames[hospital].copy(), np.random.default_rng(seed))
    if isinstance(planted, str):
        path = folder / "table.csv"
        path.write_text(planted, encoding="utf-8")
        planted = path
    summaries = dict(clean)
    if "other_number_of_rows" in fault.codes:
        book = dataclasses.replace(book, sites={hospital: pf.codebook.Site(rows=len(frames[hospital]))})
        summaries = {name: dataclasses.replace(one, codebook=book) for name, one in summaries.items()}
    summaries[hospital] = pf.codebook.check(book, planted, hospital).summary
    return list(summaries.values())


def is_named(fault, hospital, found):
    """Whether a finding names the fault, its column and its hospital."""
    return any(
        one.site == hospital
        and one.finding.code in fault.codes
        and fault.says in one.finding.text
        and one.finding.where.get("column", "") == fault.column
        for one in found
    )


def main():
    parser = argparse.ArgumentParser(description="Count faults that are named, and false alarms on clean tables.")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--clean", action="store_true", help="clean tables alone")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    (folder / "codebook.toml").write_text(CODEBOOK, encoding="utf-8")
    book = pf.codebook.read_codebook(folder / "codebook.toml")
    alarms, named, missed = 0, 0, []
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        frames = {hospital: table(seed, hospital) for hospital in HOSPITALS}
        clean = {hospital: pf.codebook.check(book, frame, hospital).summary for hospital, frame in frames.items()}
        alarms += bool(pf.codebook.compare(list(clean.values())))
        for number, fault in enumerate([] if chosen.clean else FAULTS):
            hospital = HOSPITALS[(seed + number) % len(HOSPITALS)]
            found = pf.codebook.compare(summaries_with(fault, book, frames, hospital, clean, folder, seed))
            if is_named(fault, hospital, found):
                named += 1
            else:
                missed.append(f"{fault.name} at {hospital} of seed {seed}, {len(frames[hospital])} rows")
    print(f"{chosen.seeds} clean studies, {alarms} with a finding; {named} faults named, {len(missed)} missed")
    print("\n".join(missed))


if __name__ == "__main__":
    main()
