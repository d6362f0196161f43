"""What agents send: `P2PVI` on a ring and on a random graph of ten, against plain consensus and `FedEP`.

    python -m benchmarks.speed.wire [--model logistic|readme]

Logistic regression (569 rows, 30 covariates, real; ten clients sorted by label), or README's model. Reported are bytes
sent by all clients, rounds of the start and of the algorithm, processor seconds, and the largest distance of an agent's
means from the plain form's, in SDs, and of its log SDs. Plain: as many steps of W itself as leave the same share of the
disagreement, in the start too; whole matrices would take twice as many bytes besides.
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model
from benchmarks.helpers.tables import heading, row
from benchmarks.speed.nuts import load
from pyro_fed.graph import FixedGraph
from pyro_fed.graph.consensus import unshifted_steps
from pyro_fed.recipes.experiment import build_federation
from pyro_fed.recipes.library import load_model


class PlainGraph(FixedGraph):
    """The same graph, whose agents take steps of W alone."""

    def consensus(self, tolerance):
        return unshifted_steps(int(self.consensus_rounds(tolerance)))

    def sums(self, tolerance):
        return self.consensus(tolerance)


def sorted_clients(clients=10, noise=0.0):
    x, y = load()
    x = x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    order = (100 * y + x[:, 0]).argsort()
    parts = zip(x[order].tensor_split(clients), y[order].tensor_split(clients), strict=True)
    return pf.Federation.from_clients(model, list(parts), plate="data")


def moments(idata):
    stacked = np.concatenate(
        [value.values.reshape(*value.shape[:2], -1) for value in idata.posterior.data_vars.values()], -1
    )
    return stacked.mean(1), stacked.std(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["logistic", "readme"], default="logistic")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.model == "readme":
        fed = build_federation(load_model("logistic_regression"), 10, "dirichlet:0.3", 0).federation
    else:
        fed = sorted_clients()
    graphs = {"ring": pf.graph.ring(10), "random graph": pf.graph.erdos_renyi(10, 0.4, seed=1)}
    cases: list[tuple[str, Any, pf.graph.Graph | None]] = [("FedEP, with a server", pf.FedEP(), None)]
    for name, linked in graphs.items():
        cases += [(f"{name}, plain", pf.P2PVI(), PlainGraph(linked.matrix, name)), (name, pf.P2PVI(), linked)]
    print(heading("", "MB sent", "rounds", "seconds", "means, SD", "log SDs"))
    for name, algorithm, graph in cases:
        began = time.process_time()
        quiet: dict[str, Any] = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 20_000}
        idata = pf.run(algorithm, fed, seed=0, graph=graph, **quiet)
        seconds, group = time.process_time() - began, idata["federation"]
        found, away = moments(idata), ("", "")
        if graph is not None and name.endswith("plain"):
            reference = found
        elif graph is not None:
            shift = np.abs(found[0] - reference[0]) / reference[1]
            away = f"{shift.max():.3f}", f"{np.abs(np.log(found[1] / reference[1])).max():.3f}"
        sent, rounds = float(group["bytes_up"].sum()) / 1e6, group.sizes["round"]
        print(row(name, f"{sent:.1f}", rounds, f"{seconds:.1f}", away[0], away[1]), flush=True)


if __name__ == "__main__":
    main()
