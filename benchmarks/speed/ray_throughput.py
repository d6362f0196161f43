"""Ray's throughput: 1,000 clients at one worker and at two, and what a message costs beside the work.

Claims (one free CPU a worker): with a compute-bound local step two workers do at least 1.5 times one worker's clients
a second; with a step that does next to nothing a client's message takes under 5 ms.

    python -m benchmarks.speed.ray_throughput [--clients 1000] [--rounds 3]
"""

import argparse
import time
import warnings
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model
from pyro_fed.algorithm.schedule import All


def federation(clients, rows, dim, seed=0):
    """Logistic regression with so many rows a client."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * rows, dim, generator=generator, dtype=torch.float64)
    y = (torch.rand(clients * rows, generator=generator) < torch.sigmoid(x @ torch.ones(dim, dtype=x.dtype))).to(x)
    return pf.Federation(model, (x, y), plate="data", num_clients=clients)


def seconds_a_round(executor, algorithm, fed, rounds):
    """Of the rounds after the first, which loads and compiles: the fastest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        options: dict[str, Any] = {"schedule": All(), "log_likelihood": False, "progress": False, "compile": "trace"}
        result = pf.run(algorithm, fed, num_rounds=rounds + 1, executor=executor, **options)
    each = result["federation"]["seconds"].values
    return float(each[1:].sum(1).min())


def measure(num_workers, algorithm, fed, rounds):
    with pf.executors.Ray(num_workers) as executor:
        return seconds_a_round(executor, algorithm, fed, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    began = time.perf_counter()
    heavy = federation(given.clients, rows=200, dim=20)
    compute = pf.FedAvg(chain_steps=10)
    one, two = (measure(count, compute, heavy, given.rounds) for count in (1, 2))
    print(f"compute-bound step, {given.clients} clients: {one:.2f} s a round at 1 worker, {two:.2f} s at 2")
    print(f"two workers: {one / two:.2f} times one worker's throughput (claim: 1.5)")
    light, idle = federation(given.clients, rows=2, dim=2), pf.FedAvg(chain_steps=1)
    step = seconds_a_round("sequential", idle, light, given.rounds)
    remote = measure(1, idle, light, given.rounds)
    here, there = 1e3 * step / given.clients, 1e3 * remote / given.clients
    print(f"light step: {here:.2f} ms a client in this process, {there:.2f} ms at a worker")
    print(f"overhead: {there - here:.3f} ms a client's message (claim: under 5 ms)")
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
