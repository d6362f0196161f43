"""Three clients that have one label each, and the same rows dealt evenly: what few clients of unlike rows come to.

    python -m benchmarks.networks.few_clients
    python -m benchmarks.networks.few_clients --seeds 10 --algorithms P2PVI "P2PVI, ten steps a round"

Four columns of normal numbers, 480 rows to train on and 120 to test; the label is the third that a score falls into: of
"thresholds" x_0 + sin 2 x_1 and noise of 0.7, of "rings" the distance of (x_0, x_1) from the origin. The network of
`benchmarks.networks` with 15 units, 123 parameters, by the algorithms' defaults; `P2PVI` on a complete graph. Accuracy
on the test rows, chance is 1/3; mean ± standard error over seeds, which draw the rows and are those of the runs.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import network, quiet
from pyro_fed.algorithm import Algorithm
from pyro_fed.policy.gaussian import SMALL_ROUNDS

CLIENTS, HIDDEN, COLUMNS, TRAIN, TEST, NOISE = 3, 15, 4, 480, 120, 0.7
TEN = {"rounds": SMALL_ROUNDS, "steps": 10}
ALGORITHMS: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "FedAvg": (pf.FedAvg(), {}),
    "FedEP": (pf.FedEP(), {}),
    "FedEP, ten steps a round": (pf.FedEP(client=pf.infer.tilted.IVON(**TEN), start="fedavg", covariance="diag"), {}),
    "P2PVI": (pf.P2PVI(), {"graph": pf.graph.complete(CLIENTS)}),
    "P2PVI, ten steps a round": (
        pf.P2PVI(update=pf.infer.update.IVON(**TEN), start="fedavg", covariance="diag"),
        {"graph": pf.graph.complete(CLIENTS)},
    ),
}


def thresholds(x: Tensor, generator: torch.Generator) -> Tensor:
    """A sum, with noise."""
    return x[:, 0] + (2 * x[:, 1]).sin() + NOISE * torch.randn(len(x), generator=generator)


def rings(x: Tensor, generator: torch.Generator) -> Tensor:
    """A distance."""
    return x[:, :2].norm(dim=-1)


TASKS = {"thresholds": thresholds, "rings": rings}


def rows(task: str, seed: int) -> tuple[Tensor, Tensor]:
    """Columns and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TRAIN + TEST, COLUMNS, generator=generator)
    score = TASKS[task](x, generator)
    return x, torch.bucketize(score, score.quantile(torch.tensor([1 / CLIENTS, 2 / CLIENTS])))


def accuracy(name: str, task: str, seed: int, apart: bool) -> float:
    """On the test rows, of clients with a label each or dealt evenly."""
    algorithm, options = ALGORITHMS[name]
    x, y = rows(task, seed)
    train, test = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    parts = [train[1] == label for label in range(CLIENTS)]
    if not apart:
        parts = [torch.arange(TRAIN) % CLIENTS == client for client in range(CLIENTS)]
    shards = [(train[0][part], train[1][part]) for part in parts]
    fed = pf.Federation.from_clients(network(HIDDEN, CLIENTS), shards, plate="data")
    with quiet():
        idata = pf.run(algorithm, fed, seed=seed, progress=False, audit=False, log_likelihood=False, **options)
    return float(pf.metrics.test_metrics(idata, fed, test)["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("labels", "algorithm", "a label each", "dealt evenly", "seeds"))
    for task in TASKS:
        for name in given.algorithms:
            both = [[accuracy(name, task, seed, apart) for seed in range(given.seeds)] for apart in (True, False)]
            print(row(task, f"`{name}`", spread(both[0]), spread(both[1]), given.seeds), flush=True)


if __name__ == "__main__":
    main()
