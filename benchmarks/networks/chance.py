"""How far runs of a network differ by chance: one run of each of several seeds, and their mean and worst.

    python -m benchmarks.networks.chance                              # FedEP at 75,010 parameters, eight seeds
    python -m benchmarks.networks.chance 2 5 --hidden 100 --algorithms FedEP P2PVI
    python -m benchmarks.networks.chance 6 --data cancer --hidden 20 --gain 1e9

Networks, data, clients and runs of `benchmarks.networks`: the seed is that of the split, of the partition and of the
run; `--run` holds the run's seed still. `--gain` sets how many nats a row a step of `FedEP`'s may promise
(`pf.infer.tilted.IVON(most_gain=)`): 1e9 holds none, as was so before. Accuracy, log density and ECE on the rows to
test on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import ALGORITHMS, DATA, federation, quiet, scores
from pyro_fed.algorithm import Algorithm
from pyro_fed.policy import resolve

#: What is printed of a run, in this order.
FIGURES = ("accuracy", "log density", "ECE")


def with_gain(algorithm: Any, fed: pf.Federation, gain: float) -> Algorithm:
    """FedEP as it is by default, but for what its steps may promise."""
    fitted: Any = resolve(algorithm, fed.problem.traits).algorithm
    return replace(fitted, client=replace(fitted.client, most_gain=gain), covariance="diag")


def measured(name: str, hidden: int, seed: int, data: str, run_seed: int, gain: float | None) -> list[float]:
    """Accuracy, log density and ECE of one run."""
    fed, test = federation(hidden, seed, data)
    make, options = ALGORITHMS[name]
    algorithm = make() if gain is None else with_gain(make(), fed, gain)
    with quiet():
        idata = pf.run(algorithm, fed, seed=run_seed, progress=False, audit=False, log_likelihood=False, **options)
    return scores(idata, fed, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="*", default=range(8))
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=["FedEP"])
    parser.add_argument("--run", type=int, help="the run's seed, for all")
    parser.add_argument("--gain", type=float, help="nats a row that a step of FedEP's may promise")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("seed", "algorithm", *FIGURES))
    for name in given.algorithms:
        found = []
        for seed in given.seeds:
            run_seed = seed if given.run is None else given.run
            found.append(measured(name, given.hidden, seed, given.data, run_seed, given.gain))
            print(row(seed, f"`{name}`", *(f"{value:.3f}" for value in found[-1])), flush=True)
        print(row("all", f"`{name}`", *(spread(values) for values in zip(*found, strict=True))))
        worst = [min(values) for values in list(zip(*found, strict=True))[:2]] + [max(one[2] for one in found)]
        print(row("worst", f"`{name}`", *(f"{value:.3f}" for value in worst)), flush=True)


if __name__ == "__main__":
    main()
