"""Every agent against reference posteriors: a ring of 5 and a random graph of 10, data sorted by a covariate.

Prints, for P2PVI and P2PEP, the largest error of any agent's mean in reference SDs and the range of SD
ratios. Needs PYRO_FED_DATA. Agents' moments are those of 20,000 draws, so that about 0.03 of each error is
noise.

    python -m benchmarks.accuracy.p2p_posteriordb [names]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import pyro_fed as pf
from tests.helpers import posteriordb

GRAPHS = {"ring of 5": pf.graph.ring(5), "random graph of 10": pf.graph.erdos_renyi(10, 0.4, seed=1)}
NAMES = ("sblrc", "kidiq", "earnings", "mesquite", "nes1980", "gauss_mix", "diamonds")


def errors(case: Any, idata: Any) -> tuple[float, float, float]:
    """Over all agents and parameters: largest mean error in SDs, smallest and largest SD ratio."""
    means, sds = case.moments()
    off, ratio = [], []
    for name in means:
        draws = idata["posterior"][name].values
        off.append((np.abs(draws.mean(1) - means[name]) / sds[name]).ravel())
        ratio.append((draws.std(1) / sds[name]).ravel())
    return (
        float(np.concatenate(off).max()),
        float(np.concatenate(ratio).min()),
        float(np.concatenate(ratio).max()),
    )


def main(names: tuple[str, ...] = NAMES) -> list[tuple[str, str, str, float, float, float]]:
    found = []
    for name in names:
        case = posteriordb.CASES[name]
        for place, graph in GRAPHS.items():
            fed = case.federation(graph.num_agents, sort=True)
            for algorithm in (pf.P2PVI(), pf.P2PEP()):
                began = time.perf_counter()
                idata = pf.run(algorithm, fed, graph=graph, num_draws=20_000, log_likelihood=False, progress=False)
                row = (name, place, type(algorithm).__name__, *errors(case, idata))
                found.append(row)
                print(
                    "{:10s} {:18s} {:6s} mean error {:.3f} SD, SD ratio {:.3f}-{:.3f}".format(*row),
                    f"{idata['federation'].sizes['round']} rounds {time.perf_counter() - began:.0f} s "
                    f"{idata.attrs['warnings']}",
                    flush=True,
                )
    return found


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
