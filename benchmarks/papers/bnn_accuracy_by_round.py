"""Accuracy of a network on digits by round, in the form of Figure 7 of Kassab and Simeone.

    python -m benchmarks.papers.bnn_accuracy_by_round [--seeds 1] [--clients 2,20] [--rounds 20] [--out FILE]

scikit-learn's digits (for MNIST and Fashion-MNIST), half of them to test on, 50 hidden units, one client a round in
turn, L = L' = 200 steps, N = 20 particles, AdaGrad at 0.001 (Table 3): published DSVGD, SVGD on the pooled data with as
many steps, DSGLD with N chains, and FedAvg with L steps of SGD at 0.1. The Langevin chains step by 1e-5, as in
`logistic_accuracy`. Per cent of the test rows; mean and standard error over splits.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.classification_data import digits
from benchmarks.helpers.curves import at_rounds, by_round, on_test, plot_curves, print_table, save
from benchmarks.papers.calibration_digits import METHODS, STEPS
from benchmarks.papers.logistic_accuracy import LANGEVIN
from models import bnn_classification

HIDDEN, PARTICLES = 50, 20
SHOWN = (1, 2, 5, 10, 20)


def algorithms():
    """The figure's algorithms, by name."""
    chains = pf.infer.DSGLD(num_chains=PARTICLES, local_steps=STEPS, batch_size=None, sweeps=False, **LANGEVIN)
    return {**{name: make(PARTICLES) for name, make in METHODS.items()}, "DSGLD": chains}


def curves(clients, seeds, rounds):
    """Accuracy in % by round, (seed, round), by method."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in algorithms()}
    for seed in range(seeds):
        train, test = digits(seed, test_size=0.5)
        model = partial(bnn_classification.model, hidden=HIDDEN)
        fed = pf.Federation(model, train, plate="data", num_clients=clients, seed=seed)
        for name, algorithm in algorithms().items():
            schedule: dict[str, Any] = {} if name == "DSGLD" else {"schedule": pf.schedule.RoundRobin()}
            record = by_round(algorithm, fed, on_test(fed, test), rounds, seed=seed, audit=False, **schedule)
            found[name].append(100 * record["accuracy"].values)
    return {name: np.stack(runs) for name, runs in found.items()}


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", default="2,20")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out/bnn_accuracy.png"))
    options = parser.parse_args()
    sizes = [int(text) for text in options.clients.split(",")]
    figure, axes = plt.subplots(1, len(sizes), figsize=(5 * len(sizes), 3.6), layout="constrained", squeeze=False)
    rounds = range(1, options.rounds + 1)
    shown = [one for one in SHOWN if one <= options.rounds]
    for axis, clients in zip(axes[0], sizes, strict=True):
        found = curves(clients, options.seeds, options.rounds)
        print_table(f"digits, K = {clients}: accuracy in %", found, at_rounds(rounds, shown))
        plot_curves(axis, found, rounds, f"digits, K = {clients}", "test accuracy in %")
    axes[0, 0].legend(fontsize=8)
    save(figure, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
