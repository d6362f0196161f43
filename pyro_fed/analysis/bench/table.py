"""The benchmark as tables: how often each algorithm is right or wrong, and whether it doubts its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pyro_fed.analysis.bench.bench import Results
from pyro_fed.analysis.bench.cell import OUTCOMES, Outcome
from pyro_fed.analysis.numbers import digits, readable_bytes, readable_seconds

#: Scores whose median over an algorithm's cells is shown: the heading of each, and how it is written.
MEDIANS = {
    "mean_error": ("mean error", digits(2)),
    "sd_low": ("SD ratio, least", digits(2)),
    "sd_high": ("SD ratio, largest", digits(2)),
    "coverage": ("coverage", digits(2)),
    "sliced_wasserstein": ("sliced Wasserstein", digits(2)),
    "rounds": ("rounds", digits(0)),
    "bytes": ("bytes", readable_bytes),
    "cpu_seconds": ("CPU", readable_seconds),
}


def confusion(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """The number of cells of each outcome."""
    kinds = [one.outcome for one in outcomes]
    return {name: kinds.count(name) for name in OUTCOMES}


def medians(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Medians of the scores, each over the cells with an answer that have this score."""
    found: dict[str, float | None] = {}
    for name in MEDIANS:
        values = [value for one in outcomes if (value := one.scores.get(name)) is not None and one.answered]
        found[name] = float(np.median(values)) if values else None
    return found


def by_algorithm(results: Results) -> dict[str, list[Outcome]]:
    """The cells of each algorithm, in their order."""
    return {name: [one for one in results.outcomes if one.algorithm == name] for name in results.algorithms}


def column_headings() -> list[str]:
    """The headings of the summary's columns."""
    return ["algorithm", "cells", *OUTCOMES, *(title for title, _ in MEDIANS.values())]


def summary(results: Results) -> list[list[str]]:
    """A row of texts for each algorithm: its name, number of cells, numbers of outcomes, and medians."""
    rows = []
    for name, part in by_algorithm(results).items():
        if part:
            values = medians(part)
            cells = [number_text(values[key], write) for key, (_, write) in MEDIANS.items()]
            rows.append([name, str(len(part)), *map(str, confusion(part).values()), *cells])
    return rows


def number_text(value: float | None, write: Any) -> str:
    """A number as text, or a dash for None."""
    return "–" if value is None else str(write(value))


def in_short(outcome: Outcome) -> str:
    """A line of text on a cell."""
    values = outcome.scores
    where = f"{outcome.case} {outcome.split} {outcome.algorithm}"
    spent = number_text(values.get("cpu_seconds"), readable_seconds)
    if not outcome.answered:
        return f"{where:60s} {outcome.outcome:14s} {spent}  {outcome.error.splitlines()[0][:90]}"
    figures = (
        f"mean error {digits(2)(values['mean_error'] or 0.0)}, SD {values['sd_low']:.2f} to {values['sd_high']:.2f}"
    )
    return f"{where:60s} {outcome.outcome:14s} {spent}  {figures} ({outcome.where})"


def as_values(results: Results) -> dict[str, Any]:
    """The results as plain values for JSON, which `from_values` reads."""
    return {
        "algorithms": results.algorithms,
        "adapters": results.adapters,
        "cases": results.cases,
        "left_out": results.left_out,
        "waiting": results.waiting,
        "cells": [asdict(one) for one in results.outcomes],
    }


def from_values(values: dict[str, Any]) -> Results:
    """The results, read from the plain values of `as_values`."""
    cells = [Outcome(**one) for one in values["cells"]]
    return Results(**{**{name: value for name, value in values.items() if name != "cells"}, "outcomes": cells})
