"""Client selection for DSVGD on non-IID data, in the form of Figures 2 to 5 of Yang, Liu and Kassab.

    python -m benchmarks.papers.client_selection [--data digits|kin8nm|ringnorm|...] [--hidden 20] [--seeds 10]

Published DSVGD with one client a round, chosen by KSD, by HIP, at random or in turn, and published P-DSVGD with 20 %
of the clients a round; L = L' = L_s = 10, as the paper has it. "digits" (for MNIST): a network on the digits 0 to 8,
three classes a client, N = 10, 20 hidden units where the paper has 100. The others: logistic regression with classes in
the ratio 1:9 at a client, N = 6, minibatches of 10; "kin8nm" stands for Covertype, being like it in what a linear rule
can do. Accuracy is in per cent; differences are paired by seed.

A round's accuracy follows the client that worked last (the KDEs are dead, see `infer/papers/dsvgd.py`), so that
the tables also have means over half of the rounds. Both indicators are large where the particles fit badly, so that KSD
and HIP choose a client unlike the last one. "In turn" is stronger here than in the paper: the clients of these
partitions alternate in their classes, so that three in turn have all nine digits, two the two classes.

Gain over random, mean of the later half of the rounds, with its standard error (random itself in brackets):

    data, clients, rounds, seeds          KSD          HIP      in turn      P-DSVGD   HIP less KSD
    digits 27, 100, 10   (82.8)     3.1 ± 0.4    3.4 ± 0.5    4.8 ± 0.5   10.3 ± 0.5      0.3 ± 0.3
    kin8nm 30, 120, 10   (66.7)     4.7 ± 0.7    5.6 ± 0.8    5.0 ± 0.8    6.0 ± 0.8      0.8 ± 0.2
    kin8nm 120, 120, 10  (68.1)     3.2 ± 0.4    4.0 ± 0.4    3.7 ± 0.4    4.9 ± 0.4      0.8 ± 0.2
    ringnorm 30, 120, 10 (67.1)     2.1 ± 0.7    2.5 ± 0.6    3.5 ± 0.6    3.0 ± 2.0      0.4 ± 0.2
    ringnorm 120, 120, 10 (68.9)   -0.4 ± 0.7    0.9 ± 0.7    2.2 ± 0.7    7.0 ± 0.7      1.3 ± 0.2

So KSD and HIP are above random and vary less from round to round (SD of the accuracy over rounds on kin8nm, 120
clients: random 4.0, KSD 1.9, HIP 1.1), and HIP is no worse than KSD, with one exception:
ringnorm with 120 clients, where KSD changes the class three times in four (random: twice) and gains nothing by it. Why
is not understood. At a single round the errors are 1 to 6 points. On waveform (one class in three; K = 30, 60 rounds,
five seeds) both were below random in accuracy (by 1.6 ± 1) and above it in log predictive density (by 0.08 ± 0.03 a
row); on twonorm all are within 0.1. Against the paper, P-DSVGD beats HIP everywhere, at a fifth of its bytes.

DSVGD was measured with the class's floor of 1e-9 under its KDEs and P-DSVGD with none; now both have none, as the
recipes.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers import classification_data
from benchmarks.helpers.curves import at_rounds, by_round, on_test, plot_curves, print_table, recent, save
from models import bnn_classification, logistic_regression

SCHEMES = {
    "random": pf.schedule.UniformRandom(),
    "in turn": pf.schedule.RoundRobin(),
    "KSD": pf.schedule.KSD(),
    "HIP": pf.schedule.HIP(),
    "P-DSVGD": None,
}
WINDOW = 10  # rounds that a point of the figure averages
#: L = L' = 10, and the paper's KDE, which has no floor, for both algorithms.
PUBLISHED: dict[str, Any] = {"local_steps": 10, "distill_steps": 10, "kde_floor": 0.0}
NETWORK = {**PUBLISHED, "num_particles": 10, "step_size": 0.01, "fudge": 1e-6}
LOGISTIC = {**PUBLISHED, "num_particles": 6, "step_size": 0.05, "batch_size": 10}


def network(x, y=None, hidden=20):
    """The library's network for nine classes."""
    return bnn_classification.model(x, y, hidden=hidden, num_classes=9)


def problem(name, clients, seed, hidden=20):
    """Federation, test data and the settings of the algorithm."""
    if name == "digits":
        train, test = classification_data.digits(seed, classes=9)
        model: Any = partial(network, hidden=hidden)
        partition: pf.partition.Partition = pf.partition.LabelShards(3, by=train[1])
        settings = NETWORK
        dealt = 0  # the same three classes and as many rows for all seeds, so that compiled steps keep their shapes
    else:
        train, test = getattr(classification_data, name)(seed)
        model = logistic_regression.model
        partition, settings = pf.partition.MajorityShare(0.9, by=train[1]), LOGISTIC
        dealt = seed
    fed = pf.Federation(model, train, plate="data", num_clients=clients, partition=partition, seed=dealt)
    return fed, test, settings


def run(scheme, name, clients, rounds, seed, hidden=20):
    """Accuracy in per cent by round, log predictive density by round, kB exchanged a client."""
    fed, test, settings = problem(name, clients, seed, hidden)
    parallel = SCHEMES[scheme] is None
    algorithm = (
        pf.papers.PaperParallelDSVGD(**settings, server_steps=10) if parallel else pf.papers.PaperDSVGD(**settings)
    )
    record = by_round(algorithm, fed, on_test(fed, test), rounds, schedule=SCHEMES[scheme], seed=seed)
    traffic = float(record["bytes_up"].sum() + record["bytes_down"].sum()) / 1e3 / clients
    return 100 * record["accuracy"].values, record["log_predictive_density"].values, traffic


def report(title, accuracy, density, traffic, out):
    """Print the tables and save the figure."""
    count = accuracy["random"].shape[1]
    rounds = range(1, count + 1)
    halves = {f"1 to {count // 2}": slice(count // 2), f"{count // 2 + 1} to {count}": slice(count // 2, None)}
    columns = at_rounds(rounds, [max(1, count // 10), count // 2, count]) | halves
    print_table(f"{title}: accuracy in %, the others' less that of random (paired)", accuracy, columns, "random")
    print_table(f"{title}: accuracy in %, HIP's less KSD's", {n: accuracy[n] for n in ("KSD", "HIP")}, halves, "KSD")
    print_table(f"{title}: log predictive density a row", density, halves, "random", digits=3)
    print("kB exchanged a client: " + ", ".join(f"{name} {value:.0f}" for name, value in traffic.items()))
    print("SD of the accuracy over rounds: ", end="")
    print(", ".join(f"{name} {values[:, count // 2 :].std(1).mean():.1f}" for name, values in accuracy.items()))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    smooth = {name: recent(values, WINDOW) for name, values in accuracy.items()}
    plot_curves(axes[0], smooth, rounds[WINDOW - 1 :], title, f"test accuracy in %, mean of {WINDOW} rounds")
    axes[0].legend()
    gains = {name: smooth[name] - smooth["random"] for name in ("random", "in turn", "KSD", "HIP")}
    plot_curves(axes[1], gains, rounds[WINDOW - 1 :], "gain over random, paired by seed", "percentage points")
    save(figure, out)


def main():
    """Print the tables and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=("digits", "kin8nm", "twonorm", "ringnorm", "waveform"), default="digits")
    parser.add_argument("--clients", type=int, default=27)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=20, help="units of the network on the digits")
    parser.add_argument("--out", type=Path, default=Path("out/client_selection.png"))
    options = parser.parse_args()
    found: dict[str, list[Any]] = {name: [] for name in SCHEMES}
    began = time.perf_counter()
    for seed in range(options.seeds):
        for name, runs in found.items():
            runs.append(run(name, options.data, options.clients, options.rounds, seed, options.hidden))
        print(f"seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    accuracy, density = ({name: np.stack([r[i] for r in runs]) for name, runs in found.items()} for i in (0, 1))
    traffic = {name: np.mean([r[2] for r in runs]) for name, runs in found.items()}
    report(f"{options.data}, K = {options.clients}", accuracy, density, traffic, options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
