"""Accuracy of logistic regression, in the form of Figures 4, 12 and 15 of Kassab and Simeone.

    python -m benchmarks.papers.logistic_accuracy [--figure 4|5|11|12|13|14|15] [--seeds 5] [--data twonorm,kin8nm,...]

4    by round, K = 2 and K = 20 clients, one a round in turn, N = 6 particles
5    log-likelihood by round, K = 4, each client with 40 % of one label and 10 % of the other
11   after ten rounds, K = 2, N = 100, beside NPV with ten components and PMD with 500 particles
12   against the number N of particles, K = 2, ten rounds, and after fewer rounds
13   log-likelihood a test row by round, K = 2 and K = 20, in place of Figure 4's accuracy (Figure 16 is that on other
     data sets)
14   after ten rounds, K = 2, against the number L of local steps
15   by round, K = 100 with 20 at random a round for P-DSVGD, N = 6

L = L' = L_s = 200, minibatches of 10, AdaGrad at 0.05 (Tables 2 and 3), beside SVGD and SGLD on the pooled data with as
many steps, DSGLD with N chains, and FedAvg, which has one client a round in Figure 4 and the same 20 in Figure 15, each
with L steps of SGD at 0.05 on the mean loss. The Langevin chains step by 1e-5: 0.01, which Table 4 begins with, is far
beyond what is stable here.
Per cent of the test rows, or log-likelihood; mean and standard error over splits.

Figure 12, ten splits: as in the paper DSVGD and U-DSVGD are the same; the number of particles, 2 to 32, makes no
difference to any method (0.2 at most). On kin8nm all lie within 72.8 to 73.2, with errors of 0.3. On ringnorm DSVGD
and U-DSVGD 71.7 ± 0.9, SVGD 73.8 ± 0.7, SGLD and DSGLD 76.7 ± 0.4, DSVGD by default 76.2 ± 0.4: what parts them is
the noise of minibatches of 10 at a constant rate, which moves all particles together (with all rows, four splits,
DSVGD 75.6 and SVGD 76.3 ± 1; with 100 rows 74.6 and 74.8). After 1, 2, 4 and 10 rounds DSVGD has 72.4, 73.4, 72.7 and
71.7: half the data of ringnorm are enough, and more rounds of noise do not help.

Figure 15, five splits, after ten rounds, P-DSVGD / FedAvg / DSGLD / SVGD: ringnorm 76.0 / 76.4 / 76.2 / 74.2, twonorm
97.4 / 97.6 / 97.7 / 97.4, waveform 87.1 / 87.5 / 88.0 / 86.6, with errors of 0.1 to 1. P-DSVGD's gain over FedAvg in
the paper is not seen on these data, which are dealt evenly; in the first round it is no better than chance. Without
the floor under the KDEs it takes longer (two splits of twonorm: 92 % after five rounds).

All but that was measured with the classes' floor of 1e-9 under the KDEs, which this script, as the recipes, no longer
has.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers import classification_data
from benchmarks.helpers.curves import at_rounds, by_round, on_test, plot_curves, print_table, save
from models import logistic_regression

LOCAL_STEPS = 200
LANGEVIN: dict[str, Any] = {
    "surrogates": None,
    "step": pf.infer.step.Fixed(size=1e-5, precondition=False, midpoint=False),
    "control_variate": False,
    "target_ess": None,
    "burn_in": 0,
    "thin": 20,
}


def methods(particles, batch_size, local_steps=LOCAL_STEPS):
    """The figures' algorithms, with as many particles or chains."""
    shared = {"batch_size": batch_size, "local_steps": local_steps}
    stein: dict[str, Any] = {"num_particles": particles, "step_size": 0.05, "momentum": 0.9, "fudge": 1e-9, **shared}
    sites: dict[str, Any] = {**stein, "kde_floor": 0.0}
    chains: dict[str, Any] = {"num_chains": particles, **shared, **LANGEVIN}
    return {
        "DSVGD": pf.papers.PaperDSVGD(**sites),
        "U-DSVGD": pf.papers.UDSVGD(**sites),
        "P-DSVGD": pf.papers.PaperParallelDSVGD(**sites, server_steps=local_steps, share=0.2),
        "SVGD (pooled)": pf.papers.PaperSVGD(**stein),
        "SGLD (pooled)": pf.infer.SGLD(**chains),
        "DSGLD": pf.infer.DSGLD(**chains, sweeps=False),
        "FedAvg": pf.FedAvg(chain_steps=local_steps, step_size=0.05, momentum=0.0, batch_size=batch_size),
        "DSVGD, default": pf.DSVGD(num_particles=particles),
        "NPV (pooled)": pf.papers.NPV(num_components=10),
        "PMD (pooled)": pf.papers.PMD(num_particles=500),
    }


#: What ends by itself: its last figure stands for all rounds.
OWN_END = ("DSVGD, default", "NPV (pooled)", "PMD (pooled)")


def federation(name, num_clients, seed, skewed=False):
    """The data among the clients, and the test rows."""
    load = logistic_regression.load_data if name == "breast cancer" else getattr(classification_data, name)
    train, test = load(seed)
    how: dict[str, Any] = {"partition": pf.partition.MajorityShare(0.8, by=train[1])} if skewed else {}
    return pf.Federation(
        logistic_regression.model, train, plate="data", num_clients=num_clients, seed=seed, **how
    ), test


def curves(
    name, chosen, num_clients, rounds, seeds, particles=6, *, skewed=False, steps=LOCAL_STEPS, loglik=False, **options
):
    """Accuracy in per cent, or log-likelihood, over (seed, round), by method; `OWN_END` have their end in all."""
    batch_size = 100 if name == "kin8nm" else 10  # Table 2's for Covertype, and for the others
    found: dict[str, list[np.ndarray]] = {method: [] for method in chosen}
    for seed in range(seeds):
        fed, test = federation(name, num_clients, seed, skewed)
        for method, runs in found.items():
            algorithm = methods(particles, batch_size, steps)[method]
            settings = options if method == "FedAvg" else {}
            own_end = method in OWN_END
            record = by_round(algorithm, fed, on_test(fed, test), None if own_end else rounds, seed=seed, **settings)
            found_by_round = record["log_predictive_density"].values if loglik else 100 * record["accuracy"].values
            runs.append(np.full(rounds, found_by_round[-1]) if own_end else found_by_round)
    return {method: np.stack(runs) for method, runs in found.items()}


def figure_4(names, seeds):
    """Accuracy by round, two and twenty clients."""
    return by_rounds(names, seeds, {2: 10, 20: 40}, ("DSVGD", "U-DSVGD", "SVGD (pooled)", "DSGLD", "FedAvg"))


def figure_12(names, seeds):
    """Accuracy against the number of particles, and after fewer rounds."""
    sizes, count = (2, 4, 8, 16, 32), 10
    figure, axes = plt.subplots(2, len(names), figsize=(4 * len(names), 7), layout="constrained", squeeze=False)
    for column, name in zip(axes.T, names, strict=True):
        chosen = ("DSVGD", "U-DSVGD", "DSVGD, default", "SVGD (pooled)", "SGLD (pooled)", "DSGLD")
        found = [curves(name, chosen, 2, count, seeds, particles=n) for n in sizes]
        by_size = {method: np.stack([part[method][:, -1] for part in found], 1) for method in chosen}
        after = {f"DSVGD, round {r}": np.stack([part["DSVGD"][:, r - 1] for part in found], 1) for r in (1, 2, 4, 10)}
        columns = {f"N = {n}": slice(i, i + 1) for i, n in enumerate(sizes)}
        for axis, part in zip(column, (by_size, after), strict=True):
            print_table(f"{name}, K = 2, {count} rounds: accuracy in %", part, columns)
            plot_curves(axis, part, sizes, name, "test accuracy in %")
            axis.set(xlabel="number of particles or chains", xscale="log", xticks=sizes, xticklabels=sizes)
            axis.minorticks_off()
    axes[1, 0].legend(fontsize=8)
    return figure, axes


def figure_15(names, seeds):
    """Accuracy by round, a hundred clients, twenty of them a round."""
    count = 10
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.6), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        chosen = ("P-DSVGD", "SVGD (pooled)", "DSGLD", "FedAvg")
        found = curves(name, chosen, 100, count, seeds, schedule=pf.schedule.UniformRandom(20))
        rounds = range(1, count + 1)
        print_table(f"{name}, K = 100, 20 a round: accuracy in %", found, at_rounds(rounds, (1, 2, 5, count)))
        plot_curves(axis, found, rounds, f"{name}, K = 100", "test accuracy in %")
    return figure, axes


def by_rounds(names, seeds, sizes, chosen, what="accuracy in %", **how):
    """A table and a panel a data set and number of clients, whose rounds `sizes` has: by round."""
    shape = len(sizes), len(names)
    figure, axes = plt.subplots(*shape, figsize=(4 * shape[1], 3.6 * shape[0]), layout="constrained", squeeze=False)
    for column, name in zip(axes.T, names, strict=True):
        for axis, (clients, count) in zip(column, sizes.items(), strict=True):
            found = curves(name, chosen, clients, count, seeds, schedule=pf.schedule.RoundRobin(), **how)
            rounds = range(1, count + 1)
            print_table(f"{name}, K = {clients}: {what}", found, at_rounds(rounds, (1, 2, 5, 10, count)))
            plot_curves(axis, found, rounds, f"{name}, K = {clients}", f"test {what}")
    return figure, axes


def figure_5(names, seeds):
    """Log-likelihood by round, four clients with different shares of the labels."""
    chosen = ("DSVGD", "U-DSVGD", "SVGD (pooled)", "DSGLD", "FedAvg")
    return by_rounds(names, seeds, {4: 12}, chosen, "log-likelihood a row", skewed=True, loglik=True)


def figure_13(names, seeds):
    """Log-likelihood by round, two and twenty clients."""
    chosen = ("DSVGD", "U-DSVGD", "SVGD (pooled)", "DSGLD", "FedAvg")
    return by_rounds(names, seeds, {2: 10, 20: 40}, chosen, "log-likelihood a row", loglik=True)


def figure_11(names, seeds):
    """Accuracy and log-likelihood after ten rounds with a hundred particles, beside other particle methods."""
    chosen = ("DSVGD", "DSVGD, default", "SVGD (pooled)", "NPV (pooled)", "PMD (pooled)")
    figure, axes = by_rounds(names, seeds, {2: 10}, chosen, particles=100)
    by_rounds(names, seeds, {2: 10}, chosen, "log-likelihood a row", particles=100, loglik=True)
    return figure, axes


def figure_14(names, seeds):
    """Accuracy after ten rounds against the number of local steps."""
    sizes, chosen = (10, 50, 200), ("DSVGD", "SVGD (pooled)", "DSGLD", "FedAvg")
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.6), layout="constrained", squeeze=False)
    columns = {f"L = {steps}": slice(i, i + 1) for i, steps in enumerate(sizes)}
    for axis, name in zip(axes[0], names, strict=True):
        found = [curves(name, chosen, 2, 10, seeds, steps=n, schedule=pf.schedule.RoundRobin()) for n in sizes]
        by_steps = {method: np.stack([part[method][:, -1] for part in found], 1) for method in chosen}
        print_table(f"{name}, K = 2, ten rounds: accuracy in %", by_steps, columns)
        plot_curves(axis, by_steps, sizes, name, "test accuracy in %")
        axis.set(xlabel="local steps L", xscale="log")
    return figure, axes


FIGURES = {
    "4": figure_4,
    "5": figure_5,
    "11": figure_11,
    "12": figure_12,
    "13": figure_13,
    "14": figure_14,
    "15": figure_15,
}


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--figure", choices=tuple(FIGURES), default="4")
    parser.add_argument("--data", default="twonorm,ringnorm,waveform")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figure, axes = FIGURES[options.figure](options.data.split(","), options.seeds)
    axes[0, 0].legend(fontsize=8)
    save(figure, options.out or Path(f"out/logistic_figure_{options.figure}.png"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
