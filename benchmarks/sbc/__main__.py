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
import pyro
import pyro.distributions as dist
import torch
from scipy import special

import pyro_fed as pf
from benchmarks.helpers.records import Records, matches
from benchmarks.helpers.tables import heading, row
from benchmarks.sbc.models import BLOCKS, CLIENTS, SETUPS

#: Bins of the chi-square test.
BINS = 10
#: Where the empirical distribution is looked at, and samples behind its p-value.
POINTS, SIMULATED = 99, 1000
#: Central intervals whose coverage is counted.
INTERVALS = (0.5, 0.8, 0.9)


def smooth(rank: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Ranks 0..draws as numbers that are uniform on (0, 1) where the ranks are uniform; `rng` breaks ties."""
    numbers: np.ndarray = (rank + rng.uniform(size=len(rank))) / (draws + 1)
    return numbers


def chi_square(u: np.ndarray) -> float:
    """The p-value of equal counts in `BINS` bins."""
    counts = np.histogram(u, BINS, (0.0, 1.0))[0]
    expected = len(u) / BINS
    return float(special.chdtrc(BINS - 1, ((counts - expected) ** 2 / expected).sum()))


def _least_tail(u: np.ndarray) -> np.ndarray:
    """Of samples (m, n), the least two-sided binomial tail of their distribution functions over a grid, (m,)."""
    z = np.arange(1, POINTS + 1) / (POINTS + 1)
    counts = (u[:, :, None] <= z).sum(1)
    below, above = special.bdtr(counts, u.shape[1], z), special.bdtrc(counts - 1, u.shape[1], z)
    least: np.ndarray = 2 * np.minimum(below, above).min(1)
    return least


def ecdf(u: np.ndarray) -> float:
    """The p-value of the distance of the empirical distribution from the uniform one, by simulation.

    Args:
        u: (n,) in (0, 1).

    References:
        Säilynoja, Bürkner & Vehtari (2022), Graphical test for discrete uniformity, Statistics and Computing 32.
    """
    rng = np.random.default_rng(len(u))
    null = np.concatenate([_least_tail(rng.uniform(size=(100, len(u)))) for _ in range(SIMULATED // 100)])
    return float((1 + (null <= _least_tail(u[None])[0]).sum()) / (1 + SIMULATED))


def coverage(u: np.ndarray) -> list[float]:
    """The share of truths inside each of the central `INTERVALS`."""
    return [float((np.abs(u - 0.5) <= width / 2).mean()) for width in INTERVALS]


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
#: Replicates of each algorithm in the figure.
FIGURE_REPLICATES = 200
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


def line(x, y):
    """Intercept and slope of covariates that are not centred, whose posterior is correlated."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(beta[0] + beta[1] * x, 1.0), obs=y)


def draw_figure() -> None:
    """Calibration of a normal distribution with all correlations, and of the nearest one without, as docs/sbc.png."""
    import arviz as az
    import matplotlib.pyplot as plt
    from scipy import stats

    x, points = torch.linspace(0.0, 3.0, 40, dtype=torch.float64), np.linspace(0, 1, 101)
    fed = pf.Federation(line, (x, 0 * x), plate="data", num_clients=4)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    algorithms = {"FedEP()": pf.FedEP(), 'FedEP(covariance="diag")': pf.FedEP(covariance="diag")}
    for ax, (name, algorithm) in zip(axes, algorithms.items(), strict=True):
        found = pf.sbc(fed, FIGURE_REPLICATES, algorithm=algorithm, audit=False)
        pit = (found["prior_sbc"]["beta"].values[0, :, 1] + 0.5) / 100
        bands = {"confidence_bands": "simulated", "rvs": stats.uniform().rvs, "random_state": 0}
        az.plot_ecdf(pit, cdf=stats.uniform().cdf, eval_points=points, difference=True, ax=ax, **bands)
        ax.set(title=name, xlabel="rank of the true slope / 100", ylabel="distribution function − uniform")
    figure.savefig(Path(__file__).parents[2] / "docs" / "sbc.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="*", help="patterns of models and skews, separated by commas")
    parser.add_argument("--algorithms", default="*", help=f"patterns, separated by commas, of {', '.join(ALGORITHMS)}")
    parser.add_argument("--replicates", type=int, help="of each cell; 200, or 50 of DSVGD and FSGLD, by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=Path("out/sbc.jsonl"), help="file of the records")
    parser.add_argument("--print", action="store_true", help="run nothing, print the tables of what is there")
    parser.add_argument("--figure", action="store_true", help="draw docs/sbc.png, and nothing else")
    options = parser.parse_args()
    if options.figure:
        return draw_figure()
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
