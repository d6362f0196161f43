"""Simulation-based calibration of federated algorithms whose clients differ in their labels, or in their covariates.

    python -m benchmarks.sbc [--cases 'linear / *'] [--algorithms FedEP] [--replicates 200] [--out out/sbc.jsonl]
    python -m benchmarks.sbc --print                         # the table of what has been run

`pf.sbc` ranks true parameters among the draws; here with data that are sorted by label or by covariate before four
clients get their 60 rows.
Records are kept in a file in rounds of 50 replicates over all cells; what is there is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.markdown import heading, row
from benchmarks.helpers.records import Records, matches
from benchmarks.sbc.models import BLOCKS, CLIENTS, SETUPS
from benchmarks.sbc.uniformity import INTERVALS, chi_square, coverage, ecdf, smooth

#: Algorithms, and how many replicates each is worth by default.
ALGORITHMS = {
    "FedEP": (pf.FedEP, 200),
    "FedAIS": (pf.FedAIS, 200),
    "P2PVI": (pf.P2PVI, 200),
    "DSVGD": (pf.DSVGD, 50),
    "FSGLD": (pf.FSGLD, 50),
    "Auto": (pf.Auto, 50),
}
SKEWS = ("label", "covariate")
#: Replicates of a cell before the next cell has its turn, so that a run that is cut has all cells.
TURN = 50
#: Draws that the truth is ranked among.
RANKED = 99
#: Replicates below which nothing is said.
FEWEST = 10
#: p-values below this one are printed in bold: over some 100 of them the least of uniform ones is about as small.
SMALLEST_P = 0.001

Cell = tuple[str, str, str]


def federation(model: str, skew: str) -> pf.Federation:
    """The federation whose copies with new data are the replicates."""
    _, args = SETUPS[model].data(np.random.default_rng(0), skew)
    partition = pf.partition.Explicit([block.tolist() for block in BLOCKS])
    return pf.Federation(SETUPS[model].model, args, plate="data", num_clients=CLIENTS, partition=partition)


def replicate(fed: pf.Federation, cell: Cell, number: int) -> dict[str, Any]:
    """The ranks of one replicate, by parameter; -1 where there is no result."""
    model, skew, label = cell
    began = time.perf_counter()
    options: dict[str, Any] = {"graph": pf.graph.ring(CLIENTS)} if label == "P2PVI" else {}
    options |= {"seed": number, "num_ranks": RANKED, "simulate": partial(SETUPS[model].data, skew=skew)}
    ranks = {f"{name}[{i}]": -1 for name, site in fed.problem.sites.items() for i in range(site.size)}
    try:
        found = pf.sbc(fed, 1, algorithm=ALGORITHMS[label][0](), **options)
    except pf.PyroFedError:
        doubted = True
    else:
        doubted = bool(found["sample_stats"]["doubted"].any())
        each = (rank for name in fed.problem.sites for rank in found["prior_sbc"][name].values.ravel().tolist())
        ranks = dict(zip(ranks, each, strict=True))
    seconds = round(time.perf_counter() - began, 2)
    return {"case": case_of(cell, number), "cell": list(cell), "ranks": ranks, "doubted": doubted, "seconds": seconds}


def case_of(cell: Cell, number: int) -> str:
    """The name of a replicate: "linear / label / FedEP / 12"."""
    return " / ".join((*cell, str(number)))


def turns(cells: list[Cell], replicates: int | None) -> Iterable[tuple[Cell, int]]:
    """Cells and numbers of replicates, `TURN` of each cell at a time."""
    for first in range(1, 1000, TURN):
        for cell in cells:
            most = replicates or ALGORITHMS[cell[2]][1]
            yield from ((cell, number) for number in range(first, min(first + TURN, most + 1)))


def print_table(records: Iterable[dict[str, Any]]) -> None:
    """p-values and coverage by cell and parameter; of 90 % also by whether the result was doubted."""
    groups: dict[tuple[str, ...], list[tuple[int, bool]]] = defaultdict(list)
    for record in records:
        for parameter, rank in record["ranks"].items():
            groups[*record["cell"], parameter].append((rank, record["doubted"]))
    widths = (f"{100 * width:.0f} %" for width in INTERVALS)
    print(
        heading(
            *("model", "skew", "algorithm", "parameter", "replicates", "failed", "doubted", "chi² p", "ECDF p"),
            *(*widths, "90 %, not doubted", "90 %, doubted"),
        )
    )
    rng = np.random.default_rng(0)
    for key, part in sorted(groups.items()):
        worked = [one for one in part if one[0] >= 0]
        if len(worked) < FEWEST:
            continue
        rank, doubted = (np.array(column) for column in zip(*worked, strict=True))
        u = smooth(rank, RANKED, rng)
        tests = [f"**{p:.1g}**" if p < SMALLEST_P else f"{p:.2g}" for p in (chi_square(u), ecdf(u))]
        covered = (f"{share:.2f}" for share in coverage(u))
        apart = (f"{coverage(u[of])[-1]:.2f}" if of.sum() >= FEWEST else "" for of in (~doubted, doubted))
        failed = len(part) - len(worked)
        print(row(*key, len(part), failed, f"{100 * doubted.mean():.0f} %", *tests, *covered, *apart))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="*", help="patterns of models and skews, separated by commas")
    parser.add_argument("--algorithms", default="*", help=f"patterns, separated by commas, of {', '.join(ALGORITHMS)}")
    parser.add_argument("--replicates", type=int, help="of each cell; 200, or 50 of DSVGD and FSGLD, by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=Path("out/sbc.jsonl"), help="file of the records")
    parser.add_argument("--print", action="store_true", help="run nothing, print the tables of what is there")
    options = parser.parse_args()
    records = Records(options.out)
    if not options.print:
        torch.set_num_threads(1)
        run(options, records)
    print_table(records.values())


def run(options: argparse.Namespace, records: Records) -> None:
    """Run what is missing, for so many minutes."""
    labels = [label for label in ALGORITHMS if matches(label, options.algorithms)]
    places = [(model, skew) for model in SETUPS for skew in SKEWS if matches(f"{model} / {skew}", options.cases)]
    cells = [(*place, label) for label in labels for place in places]
    feds: dict[tuple[str, str], pf.Federation] = {}
    stop = time.monotonic() + 60 * options.minutes
    for cell, number in turns(cells, options.replicates):
        if case_of(cell, number) in records:
            continue
        if time.monotonic() > stop:
            return
        if cell[:2] not in feds:
            feds[cell[:2]] = federation(*cell[:2])
        records.keep(replicate(feds[cell[:2]], cell, number))


if __name__ == "__main__":
    main()
