"""Algorithms on real posteriors with reference draws (posteriordb), and how far off each answer is.

`python -m benchmarks.accuracy` runs them, and has what they show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from pyro_fed.results import InferenceData
from tests.helpers import posteriordb

CLIENTS = 5
#: Draws of `FedEP`, whose answer is a density; of `FedAIS`, as many as it has proposals; of agents.
DENSITY_DRAWS, PROPOSALS, AGENTS_DRAWS = 100_000, 32_000, 20_000
SPLITS = ("IID", "sorted")
#: Figures of the last round that are in the table where an algorithm has them.
FIGURES = {"r_hat": "R-hat", "ess": "ESS", "pareto_k": "Pareto k", "effective_draws": "worth"}
GRAPHS: dict[str, Callable[[], pf.graph.Graph]] = {
    "ring of 5": lambda: pf.graph.ring(CLIENTS),
    "random graph of 10": lambda: pf.graph.erdos_renyi(10, 0.4, seed=1),
}


@dataclass(frozen=True)
class Sought:
    """How a posterior is sought.

    Args:
        make: makes the algorithm.
        splits: of the rows: at random, or sorted by a covariate.
        options: more arguments of `run`.
        graph: makes the graph of agents, each of which is judged.
    """

    make: Callable[[], Any]
    splits: tuple[str, ...] = SPLITS
    options: Mapping[str, Any] = field(default_factory=dict)
    graph: Callable[[], pf.graph.Graph] | None = None


ALGORITHMS = {
    "FedEP": Sought(pf.FedEP, options={"num_draws": DENSITY_DRAWS}),
    "FedAIS": Sought(lambda: pf.FedAIS(num_proposals=PROPOSALS), ("sorted",), {"num_draws": PROPOSALS}),
    "FSGLD": Sought(pf.FSGLD, ("sorted",)),
    "DSVGD": Sought(pf.DSVGD),
    "ParallelDSVGD": Sought(pf.infer.ParallelDSVGD),
    "SVGD": Sought(pf.infer.SVGD),
    "PaperDSVGD": Sought(pf.papers.PaperDSVGD),
    **{
        f"{make.__name__}, {place}": Sought(make, ("sorted",), {"num_draws": AGENTS_DRAWS}, graph)
        for make in (pf.P2PVI, pf.infer.P2PEP)
        for place, graph in GRAPHS.items()
    },
}


@cache
def by_name() -> dict[str, tuple[str, str, str]]:
    """Algorithm, posterior and split of each case by its name: "FedEP / kidiq / sorted"."""
    cells = (
        (label, posterior, split)
        for label, sought in ALGORITHMS.items()
        for posterior in posteriordb.WITHOUT_LOCAL
        for split in sought.splits
    )
    return {" / ".join(cell): cell for cell in cells}


def record_of(name: str) -> dict[str, Any]:
    """The record of a case."""
    label, posterior, split = by_name()[name]
    sought, case = ALGORITHMS[label], posteriordb.CASES[posterior]
    graph = sought.graph() if sought.graph else None
    clients = graph.num_agents if graph else CLIENTS
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table says how good a result is, and its doubts
        fed = case.federation(clients, sort=split == "sorted")
        idata = pf.run(sought.make(), fed, graph=graph, progress=False, log_likelihood=False, **sought.options)
    figures = idata["federation"]
    error, low, high = errors(case, idata) if graph else case.error(idata)
    last = {name: float(figures[name][-1]) for name in FIGURES if name in figures}
    return {
        "algorithm": label,
        "posterior": posterior,
        "split": split,
        "mean_error": error,
        "sd_low": low,
        "sd_high": high,
        "rounds": int(figures.sizes["round"]),
        "megabytes": float(figures["bytes_down"].sum() + figures["bytes_up"].sum()) / 1e6 / clients,
        "doubts": idata.attrs["doubts"],
        **last,
    }


def errors(case: posteriordb.Case, idata: InferenceData) -> tuple[float, float, float]:
    """Over all agents and parameters: largest mean error in SDs, smallest and largest SD ratio."""
    means, sds = case.moments()
    off, ratio = [], []
    for name in means:
        draws = idata["posterior"][name].values
        off.append((np.abs(draws.mean(1) - means[name]) / sds[name]).ravel())
        ratio.append((draws.std(1) / sds[name]).ravel())
    return float(np.concatenate(off).max()), float(np.concatenate(ratio).min()), float(np.concatenate(ratio).max())
