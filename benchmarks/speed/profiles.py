"""Where the time of a run goes: the ten functions that take most by themselves, for each of several algorithms.

    python -m benchmarks.speed.profiles [CASE ...] [--top N]

Every case is run three times in one process, on one thread, without audit and log-likelihoods: once to trace, once for
its processor seconds, and once under cProfile, each on new data of the same shapes, with its federation. Own time is
that of a function without what it calls, as a share of the run; its seconds are that share of the run without the
profiler, which makes small calls dearer than they are. Torch's operations are functions of their own, but for those
that are written with a sign (`a @ b`), which count as the Python around them. Python that torch has generated goes by
what it is: a traced step, or Inductor's code of one. Functions of one name are added up.
"""

import argparse
import cProfile
import pstats
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from benchmarks.speed import cost_per_row
from benchmarks.speed import rows as by_rows
from benchmarks.speed.wire import sorted_clients

#: How cProfile calls what is written in C.
IN_C = re.compile(r"<built-in method (?:\S* )?(?:\w+\.)*(\w+)>|<method '(\w+)' of '.*' objects>")
ROOT = Path(__file__).resolve().parents[2]


def many_rows(seed: int) -> Callable[[], pf.Federation]:
    """Logistic regression, 100,000 x 50, one client."""
    arguments = by_rows.data("logistic", 100_000, 50, seed)
    return partial(pf.Federation, by_rows.models()["logistic"][0], arguments, plate="data", num_clients=1)


def network(seed: int) -> Callable[[], pf.Federation]:
    """A network of 61 parameters, 30,000 x 10, ten clients."""
    arguments = by_rows.data("logistic", 30_000, 10, seed)
    return partial(pf.Federation, cost_per_row.network, arguments, plate="data", num_clients=10)


def real(seed: int) -> Callable[[], pf.Federation]:
    """Logistic regression, 569 x 30, real data, ten clients sorted by label, as in `shares`."""
    return partial(sorted_clients, noise=0.1 * (seed - 1))


RING = {"graph": pf.graph.ring(10)}
CASES: dict[str, tuple[Callable[[int], Callable[[], pf.Federation]], Any, dict[str, Any]]] = {
    "FedEP": (many_rows, pf.FedEP, {}),
    "FedEP, few rows": (real, pf.FedEP, {}),
    "FedEP, network": (network, pf.FedEP, {}),
    "FSGLD": (real, pf.FSGLD, {}),
    "DSVGD": (real, pf.DSVGD, {}),
    "PVI": (real, pf.infer.PVI, {}),
    "P2PVI": (real, pf.P2PVI, RING),
    "FedAIS": (real, pf.FedAIS, {}),
}


def run(case: str, seed: int, watch: cProfile.Profile | None = None) -> tuple[float, int]:
    """Processor seconds of a run with its federation, and its rounds."""
    make, algorithm, options = CASES[case]
    federation = make(seed)
    began = time.process_time()
    with watch or nullcontext():
        idata = pf.run(algorithm(), federation(), progress=False, audit=False, log_likelihood=False, **options)
    return time.process_time() - began, idata["federation"].sizes["round"]


def called(file: str, name: str) -> str:
    """What a function is called in the table, from where cProfile has seen it."""
    if "kernel.kernel" in name:
        return "Inductor's kernels"
    if file == "~":  # in C
        return f"`{IN_C.sub(lambda found: next(filter(None, found.groups())), name)}`"
    if "eval_with_key" in file:
        return "traced steps' own Python"
    if "torchinductor" in file:
        return "Inductor's Python around its kernels"
    if file.startswith("<"):
        return f"generated Python `{name}`"
    path = file.split("site-packages/")[-1].split(":")[0]
    path = path.removeprefix(f"{ROOT}/").split("/lib/python")[-1]
    return f"`{path}`: `{name}`"


def table(watch: cProfile.Profile, top: int) -> list[tuple[str, int, float]]:
    """Name, calls, and own time as a share of the whole, of the functions that take most by themselves."""
    calls, own = defaultdict[str, int](int), defaultdict[str, float](float)
    stats: Any = pstats.Stats(watch)
    for (file, _, name), (_, count, seconds, _, _) in stats.stats.items():
        calls[called(file, name)] += count
        own[called(file, name)] += seconds
    whole = sum(own.values())
    largest = sorted(own, key=lambda name: own[name], reverse=True)[:top]
    return [(name, calls[name], own[name] / whole) for name in largest]


def show(case: str, top: int) -> None:
    """Run a case three times, and print its table."""
    run(case, 1)
    seconds, rounds = run(case, 2)
    watch = cProfile.Profile()
    _, watched = run(case, 3, watch)
    about = f"{rounds} rounds, {seconds:.2f} s; under cProfile, on other data, {watched} rounds."
    print(f"\n### {case}\n\n{(CASES[case][0].__doc__ or '').strip()} {about}\n")
    print(heading("function", "calls", "share", "seconds"))
    rows = table(watch, top)
    for name, count, share in rows:
        print(row(name, f"{count:,}", f"{share:.3f}", f"{share * seconds:.3f}"))
    left = 1 - sum(share for _, _, share in rows)
    print(row("all others", "", f"{left:.3f}", f"{left * seconds:.3f}"), flush=True)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--top", type=int, default=10)
    given = parser.parse_args()
    if unknown := [case for case in given.cases if case not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in given.cases:
        show(case, given.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
