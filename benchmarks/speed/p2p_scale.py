"""Scale: 10,000 agents on a random graph of degree 6, 50 parameters, diagonal beliefs.

Prints consensus steps a second (one sparse product over all agents), whole rounds a second (every agent's
Newton step, consensus and record) and the memory of W beside that of a dense one.

    python -m benchmarks.speed.p2p_scale
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from pyro_fed.graph.mixing import mix

AGENTS, DEGREE, PARAMETERS = 10_000, 6, 50


def model(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(y.shape[1]), 10.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


class FewDraws(pf.P2PVI):
    """Draws from ten agents alone: evaluating 10,000 draws on 10,000 rows would take longer than the run."""

    def sample(self, shared: dict[str, Tensor], num_draws: int, generator: torch.Generator) -> Tensor:
        return super().sample({name: value[:10] for name, value in shared.items()}, num_draws, generator)


def seconds(fed: pf.Federation, graph: pf.graph.Graph, rounds: int) -> float:
    algorithm = FewDraws(covariance="diag", num_points=2, gossip_steps=1, start="prior", tolerance=1e-12)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few rounds do not converge
        pf.run(algorithm, fed, graph=graph, num_rounds=rounds, num_draws=1, log_likelihood=False, progress=False)
    return time.perf_counter() - began


def consensus_rate(graph: pf.graph.Graph, steps: int = 50) -> float:
    """Consensus steps a second on natural parameters (A, 2 D)."""
    values = torch.randn(AGENTS, 2 * PARAMETERS, dtype=torch.float64)
    weights = graph.weights(0, np.random.default_rng(0))
    began = time.perf_counter()
    for _ in range(steps):
        values = mix(weights, values)
    return steps / (time.perf_counter() - began)


def main(rounds: int = 10) -> dict[str, float]:
    graph = pf.graph.random_regular(AGENTS, DEGREE)
    weights = graph.weights(0, np.random.default_rng(0))
    held = weights.data.nbytes + weights.indices.nbytes + weights.indptr.nbytes
    found = {"consensus steps a second": consensus_rate(graph), "bytes of W an edge": held / weights.nnz}
    y = torch.randn(AGENTS, PARAMETERS, dtype=torch.float64)
    fed = pf.Federation(model, (y,), plate="data", num_clients=AGENTS)
    few, many = seconds(fed, graph, 2), seconds(fed, graph, 2 + rounds)
    found["whole rounds a second"] = rounds / (many - few)
    for name, value in found.items():
        print(f"{name:42s} {value:.3g}")
    print(f"W takes {held / 1e6:.1f} MB; a dense W would take {AGENTS**2 * 8 / 1e6:.0f} MB")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
