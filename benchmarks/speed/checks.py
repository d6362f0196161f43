"""What the checks of an answer cost as a share of its rounds, by numbers of rows, with and without effects.

    python -m benchmarks.speed.checks [CASE ...] [--profile]

FedEP with its defaults, on one thread. Logistic regressions of ten clients, and `models/hierarchical_logistic.py`, with
an effect for each of twelve hospitals, which its clients integrate out. Every case is a process of its own, with
two runs of one federation: in the first, functions are traced. `rounds` are the processor's seconds of a run without
the checks of its answer, `checks` those of the checks; `--profile` prints where those of the second run go.
"""

import argparse
import cProfile
import pstats
import time
import warnings
from typing import Any
from unittest import mock

from benchmarks.helpers.records import alone
from benchmarks.helpers.tables import heading, row

HOSPITALS = 12
CASES: dict[str, tuple[str, int, int]] = {  # kind, rows (of each hospital), covariates
    "logistic 100 x 5": ("logistic", 100, 5),
    "logistic 1,000 x 10": ("logistic", 1_000, 10),
    "logistic 10,000 x 10": ("logistic", 10_000, 10),
    "logistic 10,000 x 50": ("logistic", 10_000, 50),
    "logistic 100,000 x 10": ("logistic", 100_000, 10),
    "logistic 100,000 x 50": ("logistic", 100_000, 50),
    "logistic 1,000,000 x 50": ("logistic", 1_000_000, 50),
    "effects, 12 x 10": ("effects", 10, 5),
    "effects, 12 x 85": ("effects", 85, 5),
    "effects, 12 x 850": ("effects", 850, 5),
    "effects, 12 x 8,500": ("effects", 8_500, 5),
}


def federation(kind: str, rows: int, covariates: int) -> Any:
    """The model and its rows."""
    import pyro_fed as pf
    from benchmarks.speed import hierarchies
    from benchmarks.speed import rows as by_rows
    from models import hierarchical_logistic

    if kind == "effects":
        module, (x, hospital, y) = hierarchical_logistic, hierarchies.data(HOSPITALS, rows)
        args = (x, hospital, HOSPITALS, y)
        return pf.Federation(module.model, args, plate=module.PLATE, rows=module.ROWS, num_clients=10, seed=0)
    arguments = by_rows.data(kind, rows, covariates, 0)
    return pf.Federation(by_rows.models()[kind][0], arguments, plate="data", num_clients=10)


def work(case: str, profile: bool) -> None:
    """One case: its line."""
    import torch

    import pyro_fed as pf
    from pyro_fed.runtime.finish import Finish

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    watch, checks = cProfile.Profile(), 0.0

    def timed(check: Any) -> Any:
        def of(*arguments: Any) -> Any:
            nonlocal checks
            began = time.process_time()
            if watched:
                watch.enable()
            try:
                return check(*arguments)
            finally:
                watch.disable()
                checks += time.process_time() - began

        return of

    cells = []
    with (
        mock.patch.object(Finish, "judge", timed(Finish.judge)),
        mock.patch.object(Finish, "weigh", timed(Finish.weigh)),
    ):
        fed = federation(*CASES[case])
        for seed in (0, 1):
            checks, watched = 0.0, profile and seed == 1
            began = time.process_time()
            found = pf.run(pf.FedEP(), fed, seed=seed, progress=False, log_likelihood=False)
            rounds = time.process_time() - began - checks
            cells += [f"{rounds:.2f}", f"{checks:.2f}", f"{checks / rounds:.2f}"]
    cells += [str(found["federation"].sizes["round"]), "doubted" * bool(found.attrs["doubts"])]
    print(row(case, *cells), flush=True)
    if profile:
        for order, most in (("tottime", 20), ("cumulative", 70)):
            pstats.Stats(watch).sort_stats(order).print_stats("pyro_fed" if order == "cumulative" else "", most)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    names = ("rounds", "checks", "ratio")
    print(heading("", *(f"{name}, {when}" for when in ("first", "again") for name in names), "rounds", ""))
    for case in given.cases:
        alone(work, case, given.profile)


if __name__ == "__main__":
    main()
