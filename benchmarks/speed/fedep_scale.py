"""FedSEP with 100,000 stateless clients, FedEP with 10,000 and 100,000 stateful ones: updates a second, peak memory.

    python -m benchmarks.speed.fedep_scale [CASE ...]

Every case is a process of its own, so that its peak is its own.
Linear regression with 50 parameters and 20 rows a client, diagonal q, 1,000 clients a round. Target (issue): under
4 GB and at least 20,000 client updates a second on 2 cores. A round's seconds are all of it, from one choice of clients
to the next, without the first, which compiles; they are the processor's, so that other work on the machine counts less.
Steps are compiled by Inductor, which fuses what the interpreter of the traced graph writes to memory operation by
operation. One thread: the operations are too small to share.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.records import alone, peak_gb
from pyro_fed.algorithm import Algorithm

ROWS, DIM, PER_ROUND, ROUNDS = 20, 50, 1000, 40
SETTINGS: dict[str, Any] = {
    "covariance": "diag",
    "start": "prior",
    "curvature": "fisher",
    "num_points": 2,
}
CASES: dict[str, tuple[Callable[..., Algorithm], int]] = {
    "FedSEP 100,000": (pf.infer.FedSEP, 100_000),
    "FedEP 10,000": (pf.FedEP, 10_000),
    "FedEP 100,000": (pf.FedEP, 100_000),
}


def model(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(DIM), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def federation(num_clients: int) -> pf.Federation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_clients * ROWS, DIM, generator=generator)
    y = x @ torch.ones(DIM) + torch.randn(len(x), generator=generator)
    parts = [range(k * ROWS, (k + 1) * ROWS) for k in range(num_clients)]
    return pf.Federation(model, (x, y), plate="data", partition=pf.partition.Explicit(parts))


@dataclass(frozen=True)
class Timed(pf.schedule.UniformRandom):
    """Notes when it was asked, in processor seconds."""

    times: list[float] = field(default_factory=list)

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        self.times.append(time.process_time())
        return super().select(round, num_clients, rng)


def rate(algorithm: Algorithm, num_clients: int) -> tuple[float, float]:
    """Client updates a processor second after the first round; the whole run's seconds by the clock, compiling too."""
    fed, schedule = federation(num_clients), Timed(PER_ROUND)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # so few rounds need not converge
        pf.run(
            algorithm,
            fed,
            num_rounds=ROUNDS,
            schedule=schedule,
            progress=False,
            num_draws=2,
            log_likelihood=False,
            num_threads=1,
            compile="inductor",
        )
    rounds = len(schedule.times) - 2
    return rounds * PER_ROUND / (schedule.times[-1] - schedule.times[1]), time.perf_counter() - began


def work(case: str) -> None:
    """One case: its line."""
    make, clients = CASES[case]
    updates, seconds = rate(make(**SETTINGS), clients)
    made = f"{updates:,.0f} client updates/s, {seconds:.1f} s in all, peak {peak_gb():.2f} GB"
    print(f"{case} clients: {made}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    given = parser.parse_args()
    for case in given.cases:
        alone(work, case)


if __name__ == "__main__":
    main()
