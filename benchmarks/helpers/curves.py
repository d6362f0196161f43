"""Test figures by round, over seeds, as tables and curves: what the benchmarks of the papers' figures share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.analysis.judging.metrics import test_metrics
from pyro_fed.runtime.context import Evaluate

#: The environment variable that names how runs are compiled.
COMPILE = "BENCHMARK_COMPILE"
#: Values over (seed, round), by method.
Curves = Mapping[str, np.ndarray]


def on_test(federation: pf.Federation, test: Any) -> Evaluate:
    """The test metrics of a posterior."""
    return lambda idata: test_metrics(idata, federation, test)


def by_round(
    algorithm: Algorithm, federation: pf.Federation, evaluate: Evaluate, rounds: int | None, **options: Any
) -> xr.Dataset:
    """The record of one run with its figures in every round; Inductor keeps its code on disk for the next.

    The environment variable BENCHMARK_COMPILE names another value of `compile`: "trace" is sooner ready for few runs.
    A run that diverges has NaN in the rounds that it does not have.
    """
    settings = {"progress": False, "log_likelihood": False, "compile": os.environ.get(COMPILE, "inductor"), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dead KDEs and runs cut short are part of the comparisons
        try:
            return pf.run(algorithm, federation, num_rounds=rounds, evaluate=evaluate, **settings)["federation"]
        except pf.errors.DivergenceError as error:
            if error.result is None:
                raise
            whole: xr.Dataset = error.result["federation"]
            record, done = whole[[name for name in whole if whole[name].dtype.kind in "if"]], whole.sizes["round"]
            print(f"{type(algorithm).__name__} diverges in round {done + 1}", flush=True)
            return record.pad(round=(0, rounds - done)) if rounds else record


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds (S, ...), and its standard error; zero for a single seed."""
    count = len(values)
    return values.mean(0), values.std(0, ddof=1) / count**0.5 if count > 1 else np.zeros(values.shape[1:])


def recent(values: np.ndarray, rounds: int) -> np.ndarray:
    """Mean of the last so many rounds, from the first round that has them: (S, R) to (S, R - rounds + 1)."""
    return np.lib.stride_tricks.sliding_window_view(values, rounds, -1).mean(-1)


def print_table(title: str, curves: Curves, columns: Mapping[str, slice], against: str = "", digits: int = 2) -> None:
    """Means over seeds, with SE, in spans of rounds; the others' as paired differences from the method `against`."""
    print(f"\n{title}\n{'':<18}" + "".join(f"{name:>18}" for name in columns), flush=True)
    for name, values in curves.items():
        paired = against not in ("", name)
        shown = values - curves[against] if paired else values
        cells = (_cell(shown[:, span].mean(1), "+" if paired else "", digits) for span in columns.values())
        print(f"{name:<18}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def _cell(values: np.ndarray, sign: str, digits: int) -> str:
    """Mean and standard error of values over seeds, or how many of these have none."""
    lacking = int(np.isnan(values).sum())
    if lacking:
        return f"{lacking} of {len(values)} diverged"
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.{digits}f} ± {error:.{digits}f}"


def at_rounds(rounds: Sequence[int], shown: Sequence[int]) -> dict[str, slice]:
    """Columns of a table that are single rounds."""
    places = {r: list(rounds).index(r) for r in shown}
    return {f"round {r}": slice(i, i + 1) for r, i in places.items()}


def plot_curves(axis: Any, curves: Curves, rounds: Sequence[int], title: str, ylabel: str) -> None:
    """Means over seeds with a band of one standard error."""
    for name, values in curves.items():
        mean, error = mean_and_error(values)
        (line,) = axis.plot(rounds, mean, label=name, linewidth=1.5)
        axis.fill_between(rounds, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(title=title, xlabel="round", ylabel=ylabel)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> None:
    """Save the figure and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    print(f"\nfigure in {path}")
