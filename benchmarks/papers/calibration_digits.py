"""Reliability of a network on images, in the form of Figures 8, 19 and 20 of Kassab and Simeone.

    python -m benchmarks.papers.calibration_digits [--data digits|fashion] [--seeds 3] [--out FILE]

scikit-learn's digits (for MNIST), half of them to test on, K = 20 clients, one a round in turn, ten rounds of L = L' =
200 steps, N = 20 particles, AdaGrad at 0.001 (Table 3), all of a client's 45 rows a step: published DSVGD, SVGD on the
pooled data with as many steps in minibatches of 100, and FedAvg with L steps of SGD at 0.1. For several numbers of
hidden units (Figures 8 and 19), then of particles (Figure 20). The MCE is the largest difference between confidence
and accuracy in ten bins (Eq. 21), over the test rows of all seeds together.

Accuracy / ECE / MCE, three seeds, 2,697 test rows:

    N = 20           20 hidden units       50 hidden units      100 hidden units
    FedAvg         88.6 / 0.051 / 0.28   90.2 / 0.048 / 0.37   88.0 / 0.071 / 0.38
    SVGD (pooled)  96.9 / 0.070 / 0.25   97.0 / 0.055 / 0.28   97.0 / 0.048 / 0.21
    DSVGD          92.3 / 0.038 / 0.22   93.1 / 0.033 / 0.31   93.1 / 0.027 / 0.31

    50 units                   N = 2                 N = 5                N = 10                N = 20
    SVGD (pooled)  96.8 / 0.052 / 0.23   97.1 / 0.056 / 0.40   97.1 / 0.056 / 0.25   97.0 / 0.055 / 0.28
    DSVGD          92.3 / 0.018 / 0.20   92.4 / 0.022 / 0.12   92.7 / 0.029 / 0.10   93.1 / 0.033 / 0.31

As in the paper DSVGD is right more often than FedAvg and better calibrated, in ECE and MCE at any number of units and
of particles; more units cost FedAvg its calibration and not the others; more particles leave the MCE as it is. FedAvg
is too sure of itself, the others too little. The MCE is one bin's, often of a few rows: differences of 0.1 are noise.
Measured with the class's floor of 1e-9 under DSVGD's KDEs, which this script, as the recipe, no longer has.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import pyro_fed as pf
from benchmarks.helpers.curves import save
from benchmarks.helpers.fashion_mnist import add_options, chosen
from models import bnn_classification
from pyro_fed.analysis.judging.calibration import calibration_errors, reliability
from pyro_fed.analysis.judging.metrics import accuracy, predict_rows
from pyro_fed.results.to_arviz import unconstrained_draws

HIDDEN, PARTICLES = (20, 50, 100), (2, 5, 10, 20)
ROUNDS, STEPS = 10, 200
TABLE_3: dict[str, Any] = {"step_size": 0.001, "momentum": 0.9, "fudge": 1e-6, "local_steps": STEPS}


def methods(batch_size=None):
    """The algorithms by name, functions of the number of particles; rows a step, None for all that a client has."""
    return {
        "FedAvg": lambda n: pf.FedAvg(chain_steps=STEPS, step_size=0.1, momentum=0.0, batch_size=batch_size),
        "SVGD (pooled)": lambda n: pf.papers.PaperSVGD(num_particles=n, batch_size=100, **TABLE_3),
        "DSVGD": lambda n: pf.papers.PaperDSVGD(
            num_particles=n, distill_steps=STEPS, kde_floor=0.0, batch_size=batch_size, **TABLE_3
        ),
    }


def predictions(data, method, hidden, particles, seeds):
    """Class probabilities and classes of the test rows of all seeds."""
    found = []
    for seed in range(seeds):
        train, test = data.load(seed)
        model = partial(bnn_classification.model, hidden=hidden)
        fed = pf.Federation(model, train, plate="data", num_clients=20, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # dead KDEs and few rounds are part of the comparison
            idata = pf.run(
                methods(data.batch_size)[method](particles),
                fed,
                num_rounds=ROUNDS,
                schedule=pf.schedule.RoundRobin(),
                seed=seed,
                progress=False,
                log_likelihood=False,
            )
        result = predict_rows(fed.problem, unconstrained_draws(idata, fed.problem), test)
        found.append((result.probs, result.value))
    probs, value = (torch.cat(parts) for parts in zip(*found, strict=True))
    return probs, value


def row(method, found):
    """A line of the table: accuracy, ECE and MCE at each setting."""
    cells = []
    for probs, value in found:
        errors = calibration_errors(probs, value)
        cells.append(f"{100 * accuracy(probs, value):6.1f} / {errors['ece']:.3f} / {errors['mce']:.2f}")
    print(f"{method:<18}" + "".join(f"{cell:>25}" for cell in cells), flush=True)
    return [calibration_errors(*one)["mce"] for one in found]


def header(title, settings):
    """The table's first lines."""
    print(f"\n{title}: accuracy in % / ECE / MCE\n{'':<18}" + "".join(f"{s:>25}" for s in settings), flush=True)


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/calibration_digits.png"))
    options = parser.parse_args()
    data, names = chosen(options), list(methods())
    print(f"{data.name}, {options.seeds} seeds", flush=True)
    figure, axes = plt.subplots(1, len(names) + 1, figsize=(14, 3.4), layout="constrained")
    header("N = 20", [f"{h} hidden units" for h in HIDDEN])
    for axis, method in zip(axes, names, strict=False):
        found = [predictions(data, method, hidden, 20, options.seeds) for hidden in HIDDEN]
        row(method, found)
        axis.plot([0, 1], [0, 1], color="0.6", linestyle="--")
        for hidden, one in zip(HIDDEN, found, strict=True):
            bins = reliability(*one)
            axis.plot(bins.confidence, bins.accuracy, "o-", markersize=4, label=f"{hidden} hidden units")
        axis.set(title=method, xlabel="confidence", xlim=(0, 1.02), ylim=(0, 1.02))
    axes[0].set_ylabel("share that was right\n(below the diagonal: too sure)")
    axes[0].legend(fontsize=8)
    header("50 hidden units", [f"N = {n}" for n in PARTICLES])
    for method in names:
        sizes = PARTICLES[-1:] if method == "FedAvg" else PARTICLES
        errors = row(method, [predictions(data, method, 50, n, options.seeds) for n in sizes])
        axes[-1].plot(PARTICLES, errors * (len(PARTICLES) // len(sizes)), "o-", markersize=4, label=method)
    axes[-1].set(title="50 hidden units", xlabel="number of particles", ylabel="MCE", ylim=(0, None))
    axes[-1].legend(fontsize=8)
    save(figure, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
