"""FedEP by default on real posteriors with reference draws: five clients, rows at random and sorted by a covariate.

PYRO_FED_DATA=... python -m benchmarks.accuracy.fedep_posteriordb [NAME ...]

Target: means within 0.1 reference SD and SDs within 10 %, in at most 20 rounds, with no setting changed by hand.
Measured, IID and sorted alike (a synchronous round does not see the split): mean errors of 0.005 (earnings) to 0.021
SD (kidiq, gauss_mix), SDs of 0.928 (mesquite) to 1.007 of the reference's, 18 rounds at most, those of the federated
Laplace approximation included.
"""

from __future__ import annotations

import argparse
import time

import pyro_fed as pf
from tests.helpers import posteriordb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=posteriordb.WITHOUT_LOCAL)
    print(f"{'posterior':10s} rows    mean error (SD)  SD ratios      rounds: Laplace  FedEP  seconds")
    for name in parser.parse_args().names:
        for sort in (False, True):
            case = posteriordb.CASES[name]
            began = time.perf_counter()
            fed = case.federation(5, sort)
            idata = pf.run(pf.FedEP(), fed, num_draws=100_000, progress=False, log_likelihood=False)
            seconds = time.perf_counter() - began
            error, low, high = case.error(idata)
            phase = idata["federation"]["phase"]
            rounds = [int((phase == of).sum()) for of in ("FedLaplace", "FedEP")]
            print(
                f"{name:10s} {'sorted' if sort else 'IID':6s}  {error:.4f}           {low:.3f} {high:.3f}    "
                f"{rounds[0]:15d}  {rounds[1]:5d}  {seconds:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
