"""Test RMSE of a Bayesian neural network by round, in the form of Figures 6 and 17 of Kassab and Simeone.

    PYRO_FED_DATA=... python benchmarks/bnn_regression_rmse.py [--names kin8nm,power-plant,naval-propulsion-plant]

50 hidden ReLU units, N = 20 particles, L = L' = 200, minibatches of 100, AdaGrad at 0.001 (Tables 2 and 3), K = 2 and
20 clients: published DSVGD, and SVGD on the pooled data with as many steps. The accurate DSVGD and SVGD, at 0.01 prior
SDs with their decay, find by themselves that the network has no Gaussian phase. In units of the target.

kin8nm after 60 rounds, one split: pooled 0.084 as published and 0.081 accurate; K = 2: 0.084 and 0.079;
K = 20, where 60 rounds are three passes: 0.092 and 0.087.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from curves import at_rounds, by_round, on_test, plot_curves, print_table, save

import pyro_fed as pf
from models import bnn_regression

PUBLISHED = {"num_particles": 20, "batch_size": 100, "step_size": 0.001, "fudge": 1e-6}
ACCURATE = {"num_particles": 20, "batch_size": 100, "step_size": 0.01, "local_steps": 200}
METHODS = {
    "SVGD (pooled)": pf.PaperSVGD(**PUBLISHED),
    "published DSVGD": pf.PaperDSVGD(**PUBLISHED),
    "SVGD, accurate": pf.SVGD(**ACCURATE),
    "DSVGD": pf.DSVGD(**ACCURATE),
}


def curves(name, clients, rounds):
    """RMSE over (one split, round), by method; a run that has ended by itself stays where it was."""
    train, test = bnn_regression.load_data(name=name)
    scale = float(bnn_regression.load_uci(name)[1].std())
    fed = pf.Federation(bnn_regression.model, train, plate="data", num_clients=clients)
    found = {}
    for method, algorithm in METHODS.items():
        began = time.perf_counter()
        values = scale * by_round(algorithm, fed, on_test(fed, test), rounds)["rmse"].dropna("round").values
        found[method] = np.pad(values, (0, rounds - len(values)), mode="edge")[None]
        print(f"{method}: {len(values)} rounds, {time.perf_counter() - began:.0f} s", flush=True)
    return found


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="kin8nm,power-plant,naval-propulsion-plant")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", default="2,20")
    parser.add_argument("--out", type=Path, default=Path("out/bnn_rmse.png"))
    options = parser.parse_args()
    names, counts = options.names.split(","), [int(k) for k in options.clients.split(",")]
    rounds = range(1, options.rounds + 1)
    shape = (len(counts), len(names))
    figure, axes = plt.subplots(*shape, figsize=(4 * shape[1], 3.4 * shape[0]), squeeze=False, layout="constrained")
    for column, name in zip(axes.T, names, strict=True):
        for axis, clients in zip(column, counts, strict=True):
            found = curves(name, clients, options.rounds)
            shown = sorted({1, 5, 10, 20, options.rounds} & set(rounds))
            print_table(f"{name}, K = {clients}: test RMSE", found, at_rounds(rounds, shown), digits=5)
            plot_curves(axis, found, rounds, f"{name}, K = {clients}", "test RMSE")
            axis.set(yscale="log", xscale="log")
    axes[0, 0].legend(fontsize=8)
    save(figure, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
