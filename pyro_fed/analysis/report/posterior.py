"""The posterior as tables of the page, with a row for each parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pyro_fed.analysis.judging.tables import cell
from pyro_fed.analysis.numbers import digits
from pyro_fed.analysis.report.pictures import Compared, written_rhat
from pyro_fed.infer.langevin.chain_diagnostics import fewest_effective, r_hat_limit

#: Largest number of rows of the table; of more parameters, those on which the results differ most are shown.
MOST_ROWS = 200
#: The ends of the intervals, which hold 94 %.
ENDS = (0.03, 0.97)
SUMMARY = """
Mean, SD and 94 % interval of every parameter of the reference. For the other results, the distance of the mean in SDs
of the reference, and the ratio of the SD to the reference's. Sort by such a column to see the worst parameters first.
"""
OF_ONE = "Mean, SD and 94 % interval (equal tails) of every parameter."
CHAINS = """
The chains' largest R-hat and its parameter, and the smallest effective number of draws of all chains, beside what is
wanted of so many chains: R-hat at most, effective draws at least.
"""


def tables(about: Compared) -> list[dict[str, Any]]:
    """The tables as the page's template takes them: title, note, the first column's name, columns and rows."""
    found = [_summary(about, about.centre)] if about.centre is not None else []
    return found + ([_mixing_table(about)] if about.chains else [])


def _summary(about: Compared, centre: str) -> dict[str, Any]:
    truth = about.draws[centre]
    flat = truth.flat
    low, high = np.quantile(flat, ENDS, axis=0)
    columns: dict[str, tuple[np.ndarray, Callable[[float], str]]] = {
        f"{centre}: mean": (flat.mean(0), significant),
        "SD": (flat.std(0), significant),
        "3\u00a0%": (low, significant),
        "97\u00a0%": (high, significant),
    }
    for name, found in about.gaps.items():
        place = {label: i for i, label in enumerate(found.labels)}
        at = [place.get(label, -1) for label in truth.labels]
        mean, ratio = (np.append(values, math.nan)[at] for values in (found.mean, found.ratio))  # the last is NaN
        columns |= {f"{name}: mean off by": (mean, digits(2)), f"{name}: SD ratio": (ratio, digits(2))}
    shown = about.different(centre, MOST_ROWS)
    kept = [truth.labels.index(label) for label in shown]
    rows = {truth.labels[i]: [(cell(values[i], write), values[i]) for values, write in columns.values()] for i in kept}
    total = len(truth.labels)
    rest = f" The {len(shown)} of {total} on which results differ most." if len(shown) < total else ""
    note = (SUMMARY if len(columns) > 4 else OF_ONE) + rest + about.left_out
    return {"title": "Posterior", "note": note, "first": "parameter", "columns": list(columns), "rows": rows}


def _mixing_table(about: Compared) -> dict[str, Any]:
    rows = {}
    for name, chains in about.chains.items():
        draws = about.draws[name]
        count, each, _ = draws.values.shape
        most, least = r_hat_limit(count), float(fewest_effective(count))
        values = (float(count), float(each), float(chains.rhat.max()), most, float(np.nanmin(chains.ess)), least)
        written = (f"{count}", f"{each:,}", written_rhat(values[2]), f"{most:.3f}", f"{values[4]:,.0f}", f"{least:.0f}")
        worst = draws.labels[int(chains.rhat.argmax())]
        rows[name] = [*zip(written, values, strict=True), (worst, worst)]
    columns = [
        "chains",
        "draws each",
        "largest R-hat",
        "at most",
        "smallest ESS",
        "at least",
        "parameter of that R-hat",
    ]
    return {"title": "Have the chains mixed?", "note": CHAINS, "first": "result", "columns": columns, "rows": rows}


def significant(value: float) -> str:
    """A number with three significant digits, and commas between thousands: 0.0123, 1.23, 12,346."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g}"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - size)}f}"
