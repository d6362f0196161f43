"""A GPU beside one thread of the CPU of the same machine: the same runs on both, by the clock.

    python -m benchmarks.speed.on_gpu [CASE ...] [--device cuda]

A case is a process of its own. Both devices have run a small federation first, so that neither time has imports or
the GPU's start in it; steps are traced within both times. Networks are those of `benchmarks.networks` on the digits
with ten clients, each algorithm by its defaults with its draws and log-likelihoods, and without audit; those of a
million parameters are `benchmarks.networks.cost`'s three rounds. Regressions are those of `benchmarks.speed.rows`,
without log-likelihoods. A round is the median of the algorithm's own rounds. Beside the times what came out: a
network's accuracy and log density of rows that were held back, on the CPU and on the GPU, and of a regression how far
the GPU's means are from the CPU's, in SDs. The memory is the most that torch had on the GPU.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.records import alone
from benchmarks.helpers.tables import heading, row
from benchmarks.networks.__main__ import ALGORITHMS, federation, parameters, quiet
from benchmarks.networks.cost import ROUNDS, SHORTENED
from benchmarks.speed.rows import data, models

NETWORKS = ("FedAvg", "FedEP", "FedSEP", "P2PVI", "FSGLD", "DSVGD")
#: Hidden units whose runs are whole, and those of which three rounds are run.
WHOLE, ROUNDS_ALONE = (20, 100, 1000), (13333,)
#: Kind, rows, covariates, clients.
REGRESSIONS = {
    "logistic 569 x 31, 10 clients": ("logistic", 569, 31, 10),
    "logistic 100,000 x 50, 10 clients": ("logistic", 100_000, 50, 10),
    "logistic 1,000,000 x 50, 10 clients": ("logistic", 1_000_000, 50, 10),
    "robust 100,000 x 50, 10 clients": ("robust", 100_000, 50, 10),
    "softmax of five 100,000 x 10, 10 clients": ("softmax", 100_000, 10, 10),
}
OF_NETWORKS = {
    f"{name}, network of {parameters(hidden):,}": (name, hidden)
    for hidden in (*WHOLE, *ROUNDS_ALONE)
    for name in NETWORKS
}
CASES: dict[str, tuple[str, int | str]] = {**OF_NETWORKS, **{f"FedEP, {case}": ("FedEP", case) for case in REGRESSIONS}}
TITLES = ("seconds on the CPU", "on the GPU", "ratio", "ms a round", "on the GPU", "ratio", "what came out", "GPU's MB")


def network_run(name, hidden, device):
    """A run on a device: seconds, those of a round, and what it predicts."""
    short = hidden in ROUNDS_ALONE
    fed, test = federation(hidden, 0, device=device)
    options: dict[str, Any] = {"audit": False, "progress": False}
    if short:
        algorithm, more = SHORTENED[name](True)
        options |= {"num_rounds": ROUNDS, "num_draws": 10, "log_likelihood": False}
    else:
        make, more = ALGORITHMS[name]
        algorithm = make()
    began = time.perf_counter()
    with quiet():
        idata = pf.run(algorithm, fed, seed=0, **options | more)
    seconds, round_time = time.perf_counter() - began, a_round(idata)
    if short:
        return seconds, round_time, ""
    found = pf.metrics.test_metrics(idata, fed, test)
    return seconds, round_time, f"{found['accuracy']:.3f}, {found['log_predictive_density']:.3f}"


def a_round(idata):
    """The median round, in seconds."""
    seconds = idata["federation"]["seconds"].sum("client").values
    return float(np.median(seconds[len(seconds) // 2 :]))


def regression_run(name, case, device):
    """The same of a regression: what came out are draws."""
    kind, rows, covariates, clients = REGRESSIONS[case]
    fed = pf.Federation(
        models()[kind][0], data(kind, rows, covariates, 1), plate="data", num_clients=clients, device=device
    )
    began = time.perf_counter()
    with quiet():
        idata = pf.run(getattr(pf.infer, name)(), fed, seed=0, progress=False, audit=False, log_likelihood=False)
    w = idata["posterior"]["w"].values
    return time.perf_counter() - began, a_round(idata), w.reshape(-1, *w.shape[2:])


def line(case, device):
    """A case's row of the table."""
    name, what = CASES[case]
    run = regression_run if isinstance(what, str) else network_run
    for place in ("cpu", device):
        with quiet():
            warm_up(place)
    there = torch.device(device).type == "cuda"
    (cpu, cpu_round, here), (gpu, gpu_round, found) = run(name, what, "cpu"), run(name, what, device)
    if isinstance(here, str):
        came = f"{here} · {found}" if here else ""
    else:
        came = f"{np.abs((found.mean(0) - here.mean(0)) / here.std(0)).max():.1e} SD"
    peak = torch.cuda.max_memory_allocated() / 1e6 if there else 0.0
    times = (cpu, gpu, cpu / gpu, 1e3 * cpu_round, 1e3 * gpu_round, cpu_round / gpu_round)
    return row(case, *(f"{value:.1f}" for value in times), came, f"{peak:.0f}")


def warm_up(device):
    """A run of another model."""
    fed = pf.Federation(models()["robust"][0], data("robust", 40, 2, 1), plate="data", num_clients=2, device=device)
    pf.run(pf.FedEP(), fed, num_rounds=2, progress=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    print(heading("", *TITLES), flush=True)
    for case in given.cases:
        print(alone(line, case, given.device), flush=True)


if __name__ == "__main__":
    main()
