"""Simulation-based calibration of federated algorithms whose clients differ in their labels, or in their covariates.

    python -m benchmarks.sbc [--models linear,logistic] [--algorithms FedEP] [--replicates 200] [--out out/sbc.csv]
    python -m benchmarks.sbc --print                         # the table of what has been run

Parameters are drawn from the prior, data given them, and the posterior is sought; the rank of the true value among the
draws is uniform where the posterior is exact (Talts et al. 2018). Four clients hold 60 rows that are sorted by label or
by covariate. Every replicate is new data of the same shapes, `fed.with_args(...)`, so that nothing is compiled again.
Rows are appended to a CSV file in rounds of 50 replicates over all cells; what is there is not run again.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
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
#: Independent draws that the truth is ranked among; of chains, every so many that so many are left.
RANKED = 99
COLUMNS = ("model", "skew", "algorithm", "replicate", "parameter", "rank", "draws", "doubted", "seconds")
#: Replicates below which nothing is said.
FEWEST = 10
#: p-values below this one are printed in bold: over some 100 of them the least of uniform ones is about as small.
SMALLEST_P = 0.001

Cell = tuple[str, str, str]


def federation(model: str, skew: str) -> pf.Federation:
    """The first replicate's, of which the others are copies with new data."""
    _, args = SETUPS[model].data(0, skew)
    partition = pf.partition.Explicit([block.tolist() for block in BLOCKS])
    return pf.Federation(SETUPS[model].model, args, plate="data", num_clients=CLIENTS, partition=partition)


def replicate(fed: pf.Federation, cell: Cell, number: int) -> list[dict[str, Any]]:
    """The ranks of one replicate, a row a parameter; rank -1 where there is no result."""
    model, skew, label = cell
    truth, args = SETUPS[model].data(number, skew)
    began = time.perf_counter()
    algorithm = ALGORITHMS[label][0]()
    options: dict[str, Any] = {"graph": pf.graph.ring(CLIENTS)} if label == "P2PVI" else {}
    quiet: dict[str, Any] = {"progress": False, "log_likelihood": False, "collect_local": False}
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the column `doubted` says that there was one
        try:
            idata = pf.run(algorithm, fed.with_args(args), seed=number, **options, **quiet)
        except pf.PyroFedError:
            idata = None
    seconds = time.perf_counter() - began
    for name, values in truth.items():
        for i, value in enumerate(values):
            rank, draws, doubted = -1, 0, True
            if idata is not None:
                drawn = idata["posterior"][name].values.reshape(-1, len(values))[:, i]
                kept = drawn[np.linspace(0, len(drawn) - 1, min(RANKED, len(drawn))).astype(int)]
                rank, draws = int((kept < value).sum()), len(kept)
                doubted = bool(idata.attrs["doubts"])
            rows.append(
                dict(
                    zip(
                        COLUMNS,
                        (*cell, number, f"{name}[{i}]", rank, draws, doubted, f"{seconds:.2f}"),
                        strict=True,
                    )
                )
            )
    return rows


def turns(cells: list[Cell], replicates: int | None) -> Iterable[tuple[Cell, int]]:
    """Cells and numbers of replicates, `TURN` of each cell at a time; 0 is the federation's own."""
    for first in range(1, 1000, TURN):
        for cell in cells:
            most = replicates or ALGORITHMS[cell[2]][1]
            yield from ((cell, number) for number in range(first, min(first + TURN, most + 1)))


def print_table(rows: list[dict[str, str]]) -> None:
    """p-values and coverage by cell and parameter; of 90 % also by whether the result was doubted."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["skew"], row["algorithm"], row["parameter"]].append(row)
    widths = " | ".join(f"{100 * width:.0f} %" for width in INTERVALS)
    print(
        f"| model | skew | algorithm | parameter | replicates | failed | doubted | chi² p | ECDF p | {widths} "
        "| 90 %, not doubted | 90 %, doubted |"
    )
    print("| --- " * (11 + len(INTERVALS)) + "|")
    rng = np.random.default_rng(0)
    for key, part in sorted(groups.items()):
        worked = [row for row in part if int(row["rank"]) >= 0]
        if len(worked) < FEWEST:
            continue
        rank, draws = (np.array([int(row[name]) for row in worked]) for name in ("rank", "draws"))
        u = smooth(rank, draws, rng)
        doubted = np.array([row["doubted"] == "True" for row in worked])
        tests = [f"**{p:.1g}**" if p < SMALLEST_P else f"{p:.2g}" for p in (chi_square(u), ecdf(u))]
        covered = " | ".join(f"{share:.2f}" for share in coverage(u))
        apart = (f"{coverage(u[of])[-1]:.2f}" if of.sum() >= FEWEST else "" for of in (~doubted, doubted))
        print(
            f"| {' | '.join(key)} | {len(part)} | {len(part) - len(worked)} | {100 * doubted.mean():.0f} % "
            f"| {' | '.join(tests)} | {covered} | {' | '.join(apart)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SETUPS))
    parser.add_argument("--skews", default=",".join(SKEWS))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--replicates", type=int, help="of each cell; 200, or 50 of DSVGD and FSGLD, by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no replicate after so many")
    parser.add_argument("--out", type=Path, default=Path("out/sbc.csv"), help="rows are appended here")
    parser.add_argument("--print", action="store_true", help="run nothing, print the table of what is there")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.print:
        torch.set_num_threads(1)
        run(options)
    with options.out.open() as file:
        print_table(list(csv.DictReader(file)))


def run(options: argparse.Namespace) -> None:
    """Run what is missing, for so many minutes."""
    done = set()
    if options.out.exists():
        with options.out.open() as file:
            done = {
                (row["model"], row["skew"], row["algorithm"], int(row["replicate"])) for row in csv.DictReader(file)
            }
    algorithms, models, skews = (part.split(",") for part in (options.algorithms, options.models, options.skews))
    cells = [(model, skew, label) for label in algorithms for model in models for skew in skews]
    feds: dict[tuple[str, str], pf.Federation] = {}
    stop = time.monotonic() + 60 * options.minutes
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        for cell, number in turns(cells, options.replicates):
            if (*cell, number) in done:
                continue
            if time.monotonic() > stop:
                return
            if cell[:2] not in feds:
                feds[cell[:2]] = federation(*cell[:2])
            rows = replicate(feds[cell[:2]], cell, number)
            writer.writerows(rows)
            file.flush()


if __name__ == "__main__":
    main()
