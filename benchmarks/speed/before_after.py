"""Is the package as fast as it was: the DSVGD step, and DSVGD, FedEP and FSGLD, under two source trees in one run.

    python -m benchmarks.speed.before_after BEFORE AFTER [--pairs 5] [--repeats 15] [--cases FedEP]

BEFORE and AFTER are folders that hold a `pyro_fed`, such as two git worktrees, and do not change meanwhile. The cases
name nothing but `pf.run`, `pf.Federation` and algorithms with settings that any version has, so that files may have
moved in between.

A pair is a process for each tree, both alive, on one thread each, that make the same runs in turn, every repeat in the
other order. The first run of a case ("first": tracing, and compilation or its cache on disk, included) is reported
apart from the `--repeats` later ones, of which each process has its fastest: what disturbs a run only adds to it.
Seconds are the processor's. Reported are the medians over pairs, and of the pairs' ratios the median and the range. The
ratios of a tree to itself say how much is noise. "Same answer" compares the sums of all draws: trees that do not do the
same work cannot be compared.

Claim: after / before is at most 1.05 for every case, first runs aside. The exit status is 1 where it is more.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

WITHIN = 1.05
SAME = 1e-9  # relative difference of two sums of draws
CASES = ("DSVGD step", "DSVGD", "FedEP", "FSGLD")


def federation():
    """Logistic regression with 20 weights, ten clients of 50 rows."""
    import pyro
    import pyro.distributions as dist
    import torch

    import pyro_fed as pf

    def model(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 20, generator=generator, dtype=torch.float64)
    y = (torch.rand(500, generator=generator, dtype=torch.float64) < torch.sigmoid(x.sum(1) / 4)).to(x)
    return pf.Federation(model, (x, y), plate="data", num_clients=10)


def prepare(case):
    """A function that makes the case's run."""
    import pyro_fed as pf

    fed = federation()
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        # 8,000 steps of 6 particles on minibatches of 10, and nothing beside them.
        "DSVGD step": (
            pf.papers.PaperDSVGD(num_particles=6, local_steps=400, distill_steps=400, batch_size=10),
            {"num_rounds": 10, "compile": "inductor"},
        ),
        "DSVGD": (pf.DSVGD(), {"compile": "trace"}),
        "FedEP": (pf.FedEP(), {"compile": "trace"}),
        "FSGLD": (pf.FSGLD(), {"num_rounds": 10, "compile": "trace"}),
    }
    algorithm, options = cases[case]
    return lambda: pf.run(algorithm, fed, progress=False, log_likelihood=False, **options)


def work():
    """One process of a pair: a run of every case that it reads, answered by processor seconds and the draws' sum."""
    import torch

    import pyro_fed as pf

    warnings.simplefilter("ignore")  # so few rounds need not have converged
    torch.set_num_threads(1)
    print(Path(pf.__file__).resolve().parents[1], flush=True)
    runs = {}
    for line in sys.stdin:
        case = line.strip()
        gc.collect()
        began = time.process_time()
        if case not in runs:
            runs[case] = prepare(case)  # the federation is part of the first run
        idata = runs[case]()
        seconds = time.process_time() - began
        print(seconds, sum(float(draws.sum()) for draws in idata["posterior"].data_vars.values()), flush=True)


class Worker:
    """A process that runs cases under a tree."""

    def __init__(self, tree):
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        # -P: this file's folder stays out of the search for modules.
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--work"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.tree, self.process = tree, subprocess.Popen(command, env=environment, cwd=tree, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None  # both are pipes
        self.into, self.out = self.process.stdin, self.process.stdout
        imported = self.line()
        if Path(imported) != tree:
            raise SystemExit(f"expected pyro_fed of {tree}, Python imports that of {imported}")

    def line(self):
        """What the process prints next."""
        line = self.out.readline()
        if not line:
            raise SystemExit(f"a run under {self.tree} stopped with status {self.process.wait()}")
        return line.strip()

    def run(self, case):
        """Processor seconds and sum of the draws of one run."""
        print(case, file=self.into, flush=True)
        return [float(part) for part in self.line().split()]

    def close(self):
        """End the process."""
        self.into.close()
        self.process.wait()


def pair(trees, cases, repeats, swap):
    """By case, of each tree: seconds of the first run and the fastest later one, and the sum of the draws."""
    workers = [Worker(tree) for tree in trees]
    found: dict[str, tuple[list[Any], list[Any]]] = {case: ([], []) for case in cases}
    for repeat in range(1 + repeats):
        for case in cases:
            for place in (0, 1) if repeat % 2 == swap else (1, 0):
                found[case][place].append(workers[place].run(case))
    for worker in workers:
        worker.close()
    return {
        case: [(runs[0][0], min(seconds for seconds, _ in runs[1:]), runs[0][1]) for runs in both]
        for case, both in found.items()
    }


def report(case, found):
    """Print a case's lines, from its figures in every pair; the later runs' ratio."""
    same = all(abs(after[2] - before[2]) <= SAME * max(1.0, abs(before[2])) for before, after in found)
    for index, name in enumerate(("first", "again")):
        before, after = ([one[place][index] for one in found] for place in (0, 1))
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        middle = (f"{statistics.median(values):9.3f}" for values in (before, after, ratios))
        span = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{case:12s}{name:7s}{''.join(middle)}{span:>19s}   {'yes' if same else 'NO'}")
    return statistics.median(ratios)


def main():
    """Print the table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work()
    if given.after is None or min(given.pairs, given.repeats) < 1:
        parser.error("expected two folders, BEFORE and AFTER, and at least one pair and one repeat")
    trees = [given.before.resolve(), given.after.resolve()]
    began = time.perf_counter()
    found = []
    for number in range(given.pairs):
        found.append(pair(trees, given.cases, given.repeats, number % 2))
        ratios = (f"{case} {after[1] / before[1]:.3f}" for case, (before, after) in found[-1].items())
        print(f"pair {number + 1}, after / before: {', '.join(ratios)}", flush=True)
    print(f"{'seconds':19s}{'before':>9s}{'after':>9s}{'ratio':>9s}{'over pairs':>19s}   same answer")
    slower = [case for case in given.cases if report(case, [one[case] for one in found]) > WITHIN]
    print(f"{time.perf_counter() - began:.0f} s; more than {WITHIN} times as long: {', '.join(slower) or 'none'}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
