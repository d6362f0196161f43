"""What privacy costs: ε against the error of the mean, the width of the posterior and the coverage of 90 % intervals.

The runs of `coverage`, at more ε: linear and logistic regression, `FedEP` and `FedSEP`. Above: how far the released
means are from the exact posterior's, and how wide SDs are, in exact SDs; below: in how many of all intervals the truth
lies, with the mechanism's noise in the spread, as a run returns them, and without.

    python -m benchmarks.privacy.coverage_figure [TRIALS] [FILE.png]
"""

from __future__ import annotations

import sys
import warnings
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.privacy.coverage import ALGORITHMS, MODELS, multiplier, trial

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
COLOURS = {"FedEP": "C0", "FedSEP": "C1"}


class Cell(NamedTuple):
    """At one ε: parts of the intervals that hold the truth, with the noise and without; medians of SDs and errors."""

    aware: float
    plain: float
    wide: float
    error: float


def cell(model: str, name: str, epsilon: float, trials: int) -> Cell:
    """Runs whose noise left no distribution say so, and are not in it."""
    noise = multiplier(epsilon, MODELS[model][2])
    runs = [run for seed in range(trials) if (run := trial(model, ALGORITHMS[name], noise, seed)) is not None]
    if not runs:
        return Cell(*[float("nan")] * 4)
    aware, wide, plain, _, error = (np.stack(part) for part in zip(*runs, strict=True))
    return Cell(float(aware.mean()), float(plain.mean()), float(np.median(wide)), float(np.median(error)))


def main() -> None:
    """Measure, print and draw."""
    import matplotlib.pyplot as plt

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    path = sys.argv[2] if len(sys.argv) > 2 else "docs/privacy.png"
    figure, axes = plt.subplots(2, 2, figsize=(8.0, 5.6), sharex=True, sharey="row", layout="constrained")
    for column, model in enumerate(MODELS):
        above, below = axes[:, column]
        for name, colour in COLOURS.items():
            found = [cell(model, name, epsilon, trials) for epsilon in EPSILONS]
            for epsilon, one in zip(EPSILONS, found, strict=True):
                print(model, name, epsilon, *(f"{value:.2f}" for value in one), flush=True)
            lines = (
                (above, [one.error for one in found], "-o", "error of the mean"),
                (above, [one.wide for one in found], ":", "SD"),
                (below, [one.aware for one in found], "-o", "noise in the SDs"),
                (below, [one.plain for one in found], "--", "without it"),
            )
            for axis, values, style, what in lines:
                axis.plot(EPSILONS, values, style, color=colour, label=f"{name}, {what}")
        above.axhline(1.0, color="0.6", lw=0.8)
        below.axhline(0.9, color="0.6", lw=0.8)
        above.set(title=f"{model} regression", yscale="log", xscale="log")
        below.set(xlabel="ε (δ = 1e-5, a client protected)", ylim=(0, 1.05), xticks=EPSILONS)
        below.set_xticklabels([f"{epsilon:g}" for epsilon in EPSILONS])
    axes[0, 0].set_ylabel("exact posterior's SDs")
    axes[1, 0].set_ylabel("90 % intervals that hold the truth")
    axes[0, 1].legend(fontsize=8)
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
