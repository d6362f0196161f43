"""What `ConsensusMC` costs as clients grow: chains of all clients at once, each on its own share of the posterior.

    python -m benchmarks.speed.consensus [--clients 2 10 50] [--models logistic hospitals]

Logistic regression, 569 rows x 30, dealt evenly, and `models/hierarchical_logistic.py` with a hospital a client;
processor seconds of one thread with compilation, without audit and log-likelihoods, calls of a leapfrog step for all
chains, leapfrog steps of chains that were not yet at their end, and the largest error of a mean beside `FedEP`'s, in
SDs: few rows a client are what consensus is wrong for.
"""

import argparse
import time
import warnings
from typing import Any
from unittest import mock

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model as logistic
from benchmarks.helpers.tables import heading, row
from benchmarks.speed.nuts import load
from models import hierarchical_logistic as hierarchy
from pyro_fed.infer.subposteriors import lanes


def hospitals(clients):
    """A hospital a client."""
    args, _ = hierarchy.load_data(num_hospitals=clients)
    return pf.Federation(hierarchy.model, args, plate=hierarchy.PLATE, rows=hierarchy.ROWS, num_clients=clients)


def rows(clients):
    """569 rows, dealt evenly."""
    return pf.Federation(logistic, load(), plate="data", num_clients=clients)


def figures(fed):
    """Seconds, leapfrog calls and steps, and the error."""
    calls: list[int] = []
    made: list[int] = []
    inner = lanes.Walk.step

    def step(self, *given):
        calls.append(1)
        made.append(int((self.done < self.how.warmup_steps + self.how.num_samples).sum()))
        inner(self, *given)

    began = time.process_time()
    quiet: dict[str, Any] = {"progress": False, "audit": False, "log_likelihood": False, "seed": 0}
    with mock.patch.object(lanes.Walk, "step", step):
        found = pf.run(pf.infer.ConsensusMC(), fed, **quiet)
    seconds = time.process_time() - began
    usual = pf.run(pf.FedEP(), fed, **quiet)
    mine, theirs, over = found["posterior"], usual["posterior"], ("chain", "draw")
    off = [
        np.abs(mine[name].mean(over) - theirs[name].mean(over)) / theirs[name].std(over)
        for name in theirs.data_vars
        if theirs[name].dims[2:] != ("hospital",) and name in mine
    ]
    return seconds, sum(calls), sum(made), max(float(value.max()) for value in off)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 10, 50])
    parser.add_argument("--models", nargs="+", choices=["logistic", "hospitals"], default=["logistic"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(heading("model", "clients", "seconds", "calls", "leapfrog steps", "error"))
    for name in given.models:
        for clients in given.clients:
            seconds, calls, steps, error = figures({"hospitals": hospitals, "logistic": rows}[name](clients))
            print(row(name, clients, f"{seconds:.0f}", f"{calls:,}", f"{steps:,}", f"{error:.2f}"), flush=True)


if __name__ == "__main__":
    main()
