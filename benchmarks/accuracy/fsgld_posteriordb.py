"""FSGLD by default on real posteriors with reference draws: five clients sorted by a covariate.

PYRO_FED_DATA=... python -m benchmarks.accuracy.fsgld_posteriordb [NAME ...]
"""

from __future__ import annotations

import argparse
import time

import pyro_fed as pf
from tests.helpers import posteriordb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=posteriordb.WITHOUT_LOCAL)
    print(f"{'posterior':10s} mean error (SD)  SD ratios      R-hat   ESS    rounds  seconds")
    for name in parser.parse_args().names:
        case = posteriordb.CASES[name]
        began = time.perf_counter()
        idata = pf.run(pf.FSGLD(), case.federation(5, sort=True), progress=False, log_likelihood=False)
        seconds = time.perf_counter() - began
        error, low, high = case.error(idata)
        record = idata["federation"]
        rounds = int((record["phase"] == "FSGLD").sum())
        print(
            f"{name:10s} {error:.3f}            {low:.3f} {high:.3f}    {float(record['r_hat'][-1]):.4f}  "
            f"{float(record['ess'][-1]):5.0f}  {rounds:6d}  {seconds:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
