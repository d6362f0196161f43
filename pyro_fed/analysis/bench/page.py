"""The benchmark as one HTML page that needs no other file: heat maps, scatters, and a diagnosis of every cell."""

from __future__ import annotations

import html
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

from pyro_fed.analysis.bench.algorithms import ADAPTERS
from pyro_fed.analysis.bench.bench import (
    MEDIANS,
    Results,
    by_algorithm,
    column_headings,
    confusion,
    medians,
    summary,
)
from pyro_fed.analysis.bench.cell import Outcome
from pyro_fed.analysis.judging.moments import SD_RANGE
from pyro_fed.analysis.numbers import digits, number_text, readable_bytes, readable_seconds
from pyro_fed.analysis.plots.style import REFERENCE_LINE, line_colors, tidy
from pyro_fed.analysis.report import page, svg
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.conventions.version import VERSION

TEMPLATES = Path(__file__).parent / "templates"
#: Percentage of the warning colour in each class of the heat map. The fourth class begins at the limit.
HEAT_PERCENTAGES = (0, 8, 16, 28, 40, 52, 64)
#: Upper ends of the classes, in multiples of the limit.
HEAT_LIMITS = (0.2, 0.5, 1.0, 2.0, 4.0, 10.0)
#: Number of parameters in a diagnosis.
MAX_DIAGNOSED_PARAMETERS = 12
#: Errors of exact answers are drawn here, since a logarithmic axis has no zero.
SMALLEST_ERROR = 1e-3

HOW_TO_READ = """
A case is a model with its data, whose posterior is known: in closed form, or by a long run of NUTS on all rows. Its
rows are split over clients, "sorted/10" over ten by a covariate, "iid/10" at random; an algorithm's answer from these
clients is compared with the known one. A row of the maps is a case and a split, a column an algorithm.
"""
OUTCOMES = """
An answer is wrong where a mean is off by more than 0.25 SDs of the reference or an SD is outside 0.8 to 1.25 times the
reference's, of any parameter, on the model's own or the unconstrained scale. It is doubted, or said to be wrong, where
the run itself names something that speaks against it. An error in place of an answer is "refused" where it is a
sentence of this package, "failed" otherwise; "late" is the time limit.
"""
MEDIANS_NOTE = """
Figures are medians over the cells with an answer. Coverage: share of the reference in the answer's 90 % intervals, 0.90
is right. Sliced Wasserstein: in SDs of the reference; chance alone gives 0.03 to 0.1 with 1,000 draws. Rounds and bytes
are those of all clients in both directions; methods on pooled data have none, and one answer a case, whatever the
split.
"""
ERROR_NOTE = """
Largest error of a posterior mean, in SDs of the reference. Darker is worse: shades begin at 0.05, 0.125, 0.25 (the
limit), 0.5, 1 and 2.5. Bold with a wavy line: wrong, and the answer does not say so. "!": wrong, and said. "?": right,
but doubted. Every cell opens its diagnosis. Empty: not run.
"""
RATIO_NOTE = """
Smallest and largest posterior SD over the reference's: 1 is right, below 0.8 an answer is too sure of itself.
"""


@dataclass(frozen=True)
class Scatter:
    """A figure of the mean error against another score, whose axis has an SI unit; `write` is for the dots' titles."""

    title: str
    key: str
    axis: str
    unit: str
    write: Callable[[float], str]
    note: str


SCATTERS = (
    Scatter(
        "By bytes",
        "bytes",
        "bytes of all clients, both directions",
        "B",
        readable_bytes,
        "Cells with an answer of methods that leave the data where they are.",
    ),
    Scatter(
        "By CPU time",
        "cpu_seconds",
        "CPU time, all clients simulated in one process",
        "s",
        readable_seconds,
        "All cells with an answer. Squares are other people's methods; those on pooled data are among them.",
    ),
)


def write_page(
    path: Path, results: Results, *, title: str = "Federated posteriors with known answers", command: str = ""
) -> None:
    """Write the page.

    Args:
        path: the HTML file to write.
        results: results of `run_benchmark`.
        title: title of the page.
        command: the shell command that made the results, shown at the end of the page.

    Raises:
        SettingError: jinja2 is not installed, or the file cannot be written.

    Example:
        >>> write_page(Path("benchmark.html"), run_benchmark(Path("cells"), quick=True))
    """
    ids = {_key(one): f"c{number}" for number, one in enumerate(results.outcomes)}
    colours = {name: f"var({svg.variable(colour)})" for name, colour in line_colors(results.algorithms).items()}
    others = set(results.adapters)
    page.write_page(
        path,
        "bench.html",
        TEMPLATES,
        title=title,
        lead=_lead(results),
        verdict=_verdict(results),
        notes={"how": HOW_TO_READ, "outcomes": OUTCOMES, "medians": MEDIANS_NOTE},
        summary={"heading": column_headings(), "rows": _summary(results)},
        shares=HEAT_PERCENTAGES,
        light=svg.colours(dark=False),
        dark=svg.colours(dark=True),
        maps=[
            {"title": "Error of the mean", "note": ERROR_NOTE, **_map(results, ids, _mean_error)},
            {"title": "SDs", "note": RATIO_NOTE, **_map(results, ids, _sd_ratio)},
        ],
        legend=[{"name": name, "colour": colours[name], "square": name in others} for name in results.algorithms],
        plots=[_scatter(results, ids, one) for one in SCATTERS if _answers_with(results, one.key)],
        algorithms=results.algorithms,
        cases=results.cases,
        left_out=results.left_out,
        cells=[_diagnosis(one, ids[_key(one)], one.algorithm in others) for one in results.outcomes],
        colophon=_colophon(results, command),
    )


def _key(one: Outcome) -> tuple[str, str, str]:
    return one.case, one.split, one.algorithm


def _lead(results: Results) -> str:
    cases = len({one.case for one in results.outcomes})
    splits = len({one.split for one in results.outcomes})
    algorithms = len({one.algorithm for one in results.outcomes})
    waiting = f"; {results.waiting} more have not been run yet" if results.waiting else ""
    seeds = ", ".join(map(str, sorted({one.seed for one in results.outcomes})))
    return (
        f"{len(results.outcomes)} cells: {cases} posteriors, {splits} splits of their rows, "
        f"{algorithms} algorithms, seed {seeds or '–'}{waiting}"
    )


def _verdict(results: Results) -> list[str]:
    """A sentence on this package's algorithms, and one on other people's, most of which cannot doubt themselves."""
    others = [one for one in results.outcomes if one.algorithm in results.adapters]
    own = [one for one in results.outcomes if one.algorithm not in results.adapters]
    sentences = []
    for part, whose in ((own, "this package's algorithms"), (others, "other people's methods")):
        found = confusion(part)
        right = found["right"] + found["right, doubted"]
        rest = sum(found[name] for name in ("refused", "failed", "late"))
        if part:
            sentences.append(
                f"Of {len(part)} cells of {whose} {right} are right ({found['right, doubted']} of them doubted), "
                f"{found['wrong, said']} are wrong and say so, {found['wrong, silent']} are wrong and silent; "
                f"{rest} have no answer ({found['late']} of them for want of time)."
            )
    return sentences


def _summary(results: Results) -> list[list[dict[str, Any]]]:
    parts = {name: part for name, part in by_algorithm(results).items() if part}
    rows = []
    for texts, part in zip(summary(results), parts.values(), strict=True):
        figures = [len(part), *confusion(part).values(), *medians(part).values()]
        values = ["", *("" if value is None else value for value in figures)]
        rows.append([{"text": text, "value": value} for text, value in zip(texts, values, strict=True)])
    return rows


# -- heat maps -----------------------------------------------------------------------------------------------
def _mean_error(one: Outcome) -> tuple[str, float]:
    error = one.scores["mean_error"] or 0.0
    return digits(2)(error), error / MATTERS


def _sd_ratio(one: Outcome) -> tuple[str, float]:
    low, high = (max(one.scores[name] or 0.0, 1e-12) for name in ("sd_low", "sd_high"))
    least, most = SD_RANGE
    return f"{digits(2)(low)}–{digits(2)(high)}", max(math.log(low) / math.log(least), math.log(high) / math.log(most))


def _map(results: Results, ids: dict[Any, str], figure: Callable[[Outcome], tuple[str, float]]) -> dict[str, Any]:
    cells = {_key(one): one for one in results.outcomes}
    columns = [name for name, part in by_algorithm(results).items() if part]
    rows = []
    for case in results.cases:
        splits = list(dict.fromkeys(one.split for one in results.outcomes if one.case == case))
        for number, split in enumerate(splits):
            row = [_map_cell(cells.get((case, split, name)), ids, figure) for name in columns]
            span = len(splits) if number == 0 else 0
            rows.append({"case": case, "about": results.cases[case], "split": split, "span": span, "cells": row})
    return {"columns": columns, "rows": rows}


def _map_cell(
    one: Outcome | None, ids: dict[Any, str], figure: Callable[[Outcome], tuple[str, float]]
) -> dict[str, str]:
    if one is None:
        return {"css": "none", "id": ""}
    shown = {"id": ids[_key(one)], "title": f"{one.case}, {one.split}, {one.algorithm}: {one.outcome}"}
    if not one.answered:
        return {**shown, "css": "none", "text": one.outcome}
    text, badness = figure(one)
    level = sum(badness > end for end in HEAT_LIMITS)
    mark = {"wrong, said": " !", "right, doubted": " ?"}.get(one.outcome, "")
    silent = " silent" if one.outcome == "wrong, silent" else ""
    return {**shown, "css": f"h{level}{silent}", "text": text + mark}


# -- scatters ------------------------------------------------------------------------------------------------
def _answers_with(results: Results, key: str) -> list[Outcome]:
    """The answers whose score `key` is known and positive, so that logarithmic axes can show it."""
    return [one for one in results.outcomes if one.answered and one.scores.get(key)]


def _scatter(results: Results, ids: dict[Any, str], plot: Scatter) -> dict[str, str]:
    """A scatter whose dots open the diagnoses of their cells."""
    points = _answers_with(results, plot.key)
    with mpl.rc_context(svg.STYLE):
        figure, ax = plt.subplots(figsize=(9.2, 4.4), layout="constrained")
        for name, colour in line_colors(results.algorithms).items():
            part = [one for one in points if one.algorithm == name]
            square = name in results.adapters
            dots = ax.scatter(
                [one.scores[plot.key] or 0.0 for one in part],
                [max(one.scores["mean_error"] or 0.0, SMALLEST_ERROR) for one in part],
                marker="s" if square else "o",
                facecolor="none" if square else colour,
                edgecolor=colour,
                alpha=0.75,
            )
            dots.set_urls([f"#{ids[_key(one)]}" for one in part])
        ax.set(xscale="log", yscale="log", xlabel=plot.axis, ylabel="mean error, reference SDs")
        ax.axhline(MATTERS, color=REFERENCE_LINE, linestyle="--")
        ax.annotate("wrong above", (1, MATTERS), xycoords=ax.get_yaxis_transform(), ha="right", va="bottom")
        ax.xaxis.set_major_formatter(EngFormatter(plot.unit))
        tidy(ax, grid="both")
        names = ", ".join(dict.fromkeys(one.algorithm for one in points))
        alt = f"{len(points)} points of {names}: mean error against {plot.axis}, both logarithmic"
        drawn = svg.inline(figure, plot.key, alt)
        plt.close(figure)
    titles = {
        f"#{ids[_key(one)]}": f"{one.algorithm} on {one.case}, {one.split}: {one.scores['mean_error']:.3g} SD, "
        f"{plot.write(one.scores[plot.key] or 0.0)}"
        for one in points
    }
    drawn = re.sub(
        r'<a xlink:href="(.*?)">', lambda dot: f"{dot[0]}<title>{html.escape(titles[dot[1]])}</title>", drawn
    )
    return {"title": plot.title, "note": plot.note, "svg": drawn}


# -- diagnoses -----------------------------------------------------------------------------------------------
SENTENCES = {
    "right": "Right, and nothing speaks against it.",
    "right, doubted": "Right, but the run doubts it.",
    "wrong, said": "Wrong, and the run says so.",
    "wrong, silent": "Wrong, and the run does not say so.",
    "refused": "There is no answer: it was refused.",
    "failed": "There is no answer: the method failed.",
    "late": "There is no answer within the time limit.",
}


def _diagnosis(one: Outcome, number: str, adapted: bool) -> dict[str, Any]:
    titles = {"mean_error": "mean error", **{name: title for name, (title, _) in MEDIANS.items()}}
    shown = {titles[name]: number_text(one.scores.get(name), write) for name, (_, write) in MEDIANS.items()}
    command = ["pyro-fed", "bench", "--cases", one.case, "--partitions", one.split]
    own = adapted and one.algorithm not in ADAPTERS  # the file of a user's own adapter may be anywhere
    command += ["--algorithms", f"{one.algorithm}.py" if own else one.algorithm, "--seed", str(one.seed)]
    return {
        "id": number,
        "title": f"{one.algorithm} on {one.case}, {one.split}",
        "sentence": SENTENCES[one.outcome] + (f" The worst parameter is {one.where}." if one.where else ""),
        "tone": "good" if one.outcome.startswith("right") else "bad",
        "doubts": one.doubts,
        "warned": one.warned,
        "error": one.error,
        "scores": {name: text for name, text in shown.items() if text != "–"},
        "parameters": [_parameter(row) for row in one.parameters[:MAX_DIAGNOSED_PARAMETERS]],
        "more": len(one.parameters) if len(one.parameters) > MAX_DIAGNOSED_PARAMETERS else 0,
        "settings": one.settings,
        "command": shlex.join(command),
    }


def _parameter(row: dict[str, Any]) -> list[str]:
    sd = row["reference_sd"]
    figures = [f"{row[name]:.4g}" for name in ("reference_mean", "reference_sd", "mean", "sd")]
    error = digits(3)(abs(row["mean"] - row["reference_mean"]) / sd)
    label = row["label"] + ("" if row["judged"] else " (heavy tails: not judged)")
    return [label, *figures, error, digits(3)(row["sd"] / sd), digits(3)(row["coverage"])]


def _colophon(results: Results, command: str) -> list[str]:
    versions = sorted({one.version for one in results.outcomes})
    many = f", cells of {len(versions)} versions of code and algorithms" if len(versions) > 1 else ""
    return [f"Made by pyro_fed {VERSION}{many}.", *([command] if command else [])]
