"""Accuracy and log-likelihood of a network by round, in the form of Figures 7 and 18 of Kassab and Simeone.

    python -m benchmarks.papers.bnn_accuracy_by_round [--data digits|fashion] [--clients 2,20] [--out FILE]

One client a round in turn, L = L' = 200 steps, N = 20 particles, AdaGrad at 0.001 (Table 3), no floor under the KDEs:
published DSVGD, SVGD on the pooled data with as many steps, DSGLD with N chains, and FedAvg with L steps of SGD at 0.1.
The Langevin chains step by 1e-5, as in `logistic_accuracy`. `digits`: scikit-learn's (for MNIST), half of them to test
on, all rows of a client a step. `fashion`: Fashion-MNIST (`helpers/fashion_mnist.py` says where it is looked for),
minibatches of 100 as in Table 2. Per cent of the test rows, and their mean log predictive density; mean and standard
error over splits.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.curves import at_rounds, by_round, on_test, plot_curves, print_table, save
from benchmarks.helpers.fashion_mnist import add_options, chosen
from benchmarks.papers.calibration_digits import STEPS, methods
from benchmarks.papers.logistic_accuracy import LANGEVIN
from models import bnn_classification

PARTICLES = 20
SHOWN = (1, 2, 5, 10, 20)


def algorithms(batch_size):
    """The figures' algorithms, by name."""
    chains = pf.infer.DSGLD(num_chains=PARTICLES, local_steps=STEPS, batch_size=batch_size, sweeps=False, **LANGEVIN)
    return {**{name: make(PARTICLES) for name, make in methods(batch_size).items()}, "DSGLD": chains}


def curves(data, hidden, clients, seeds, rounds):
    """Accuracy in % and log predictive density a row, each by method, (seed, round)."""
    every = algorithms(data.batch_size)
    found: dict[str, dict[str, list[np.ndarray]]] = {
        what: {name: [] for name in every} for what in ("accuracy", "log_predictive_density")
    }
    for seed in range(seeds):
        train, test = data.load(seed)
        model = partial(bnn_classification.model, hidden=hidden)
        fed = pf.Federation(model, train, plate="data", num_clients=clients, seed=seed)
        for name, algorithm in every.items():
            options: dict[str, Any] = {} if name == "DSGLD" else {"schedule": pf.schedule.RoundRobin()}
            options |= {"seed": seed, "audit": False, "compile": "trace"}  # products of matrices are most of a step
            record = by_round(algorithm, fed, on_test(fed, test), rounds, **options)
            for what, runs in found.items():
                runs[name].append(record[what].values)
    accuracy, density = ({name: np.stack(runs) for name, runs in part.items()} for part in found.values())
    return {name: 100 * values for name, values in accuracy.items()}, density


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", default="2,20")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out/bnn_accuracy.png"))
    options = parser.parse_args()
    data = chosen(options)
    sizes = [int(text) for text in options.clients.split(",")]
    figure, axes = plt.subplots(2, len(sizes), figsize=(5 * len(sizes), 7), layout="constrained", squeeze=False)
    rounds = range(1, options.rounds + 1)
    columns = at_rounds(rounds, [one for one in SHOWN if one <= options.rounds])
    for column, clients in zip(axes.T, sizes, strict=True):
        accuracy, density = curves(data, options.hidden, clients, options.seeds, options.rounds)
        title = f"{data.name}, K = {clients}"
        for axis, found, what in zip(column, (accuracy, density), ("accuracy in %", "log-likelihood"), strict=True):
            print_table(f"{title}: {what}", found, columns)
            plot_curves(axis, found, rounds, title, f"test {what}")
    axes[0, 0].legend(fontsize=8)
    save(figure, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
