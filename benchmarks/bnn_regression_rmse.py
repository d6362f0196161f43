"""Test RMSE of a Bayesian neural network a round, in the form of Figures 6 and 17 of Kassab and Simeone.

    PYRO_FED_DATA=... python benchmarks/bnn_regression_rmse.py [--names kin8nm,power-plant] [--out FILE]

50 hidden ReLU units, N = 20 particles, L = L' = 200, minibatches of 100, AdaGrad at 0.001 (Tables 2 and 3),
K = 2 and 20 clients: published DSVGD, and SVGD on the pooled data with as many steps. The accurate DSVGD and SVGD, at
0.01 prior SDs with their decay, find by themselves that the network has no Gaussian phase. In units of the target.

kin8nm after 60 rounds, one split: pooled 0.084 as published and 0.081 accurate; K = 2: 0.084 and 0.079;
K = 20, where 60 rounds are three passes: 0.092 and 0.087.
"""

import argparse
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import pyro_fed as pf
from models import bnn_regression
from pyro_fed.metrics import test_metrics

PUBLISHED = {"num_particles": 20, "batch_size": 100, "step_size": 0.001, "fudge": 1e-6}
ACCURATE = {"num_particles": 20, "batch_size": 100, "step_size": 0.01, "local_steps": 200}
METHODS = {
    "SVGD (pooled)": lambda: pf.PaperSVGD(**PUBLISHED),
    "published DSVGD": lambda: pf.PaperDSVGD(**PUBLISHED),
    "SVGD, accurate": lambda: pf.SVGD(**ACCURATE),
    "DSVGD": lambda: pf.DSVGD(**ACCURATE),
}


def main():
    """Print the table and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="kin8nm,power-plant")
    parser.add_argument("--rounds", default="1,5,10,20,60")
    parser.add_argument("--clients", default="2,20")
    parser.add_argument("--out", type=Path, default=Path("out/bnn_rmse.png"))
    options = parser.parse_args()
    names, counts = options.names.split(","), [int(k) for k in options.clients.split(",")]
    rounds = [int(r) for r in options.rounds.split(",")]
    figure, axes = plt.subplots(len(names), len(counts), figsize=(10, 4 * len(names)), squeeze=False)
    print(f"{'data':<14}{'K':>4}  {'method':<18}" + "".join(f"{f'round {r}':>10}" for r in rounds) + f"{'s':>8}")
    for row, name in zip(axes, names, strict=True):
        train, test = bnn_regression.load_data(name=name)
        scale = float(bnn_regression.load_uci(name)[1].std())
        for axis, clients in zip(row, counts, strict=True):
            fed = pf.Federation(bnn_regression.model, train, plate="data", num_clients=clients)
            for method, make in METHODS.items():
                began, curve = time.perf_counter(), []
                for number in rounds:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)  # dead KDEs are part of the comparison
                        idata = pf.run(make(), fed, num_rounds=number, progress=False, log_likelihood=False)
                    curve.append(scale * test_metrics(idata, fed, test)["rmse"])
                cells = "".join(f"{value:10.4f}" for value in curve)
                print(
                    f"{name:<14}{clients:>4}  {method:<18}{cells}{time.perf_counter() - began:8.1f}",
                    flush=True,
                )
                axis.plot(rounds, curve, "o-", label=method)
            axis.set(title=f"{name}, K = {clients}", xlabel="round", ylabel="test RMSE")
    axes[0, 0].legend()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
