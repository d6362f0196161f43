"""Theorem 1's rate: on a finite parameter set beliefs in wrong parameters decay as exp(-T K(Θ)), Eq. (5).

Nine agents observe y ~ N(a_i θ*, 1): a_i says how informative agent i is. θ is one of a few values, so
I_j(θ*, θ) = a_j² (θ* - θ)² / 2 and  K(Θ) = min_θ Σ_j v_j I_j(θ*, θ).  Beliefs are updated by Bayes' rule
(6) and mixed by (4); the slope of -log b_i is the mean over repetitions, over all agents.

Corollary 1 follows where no agent's most likely parameter is wrong: "wrong" is the share of agents and repetitions, at
the end, where it is. Its losses L_i(θ*) and L_i(θ̂) are then the same.

`pf.papers.P2PFinite` is the algorithm; 40 repetitions of 4,000 rounds are a loop over its two formulas here.

    python -m benchmarks.papers.p2p_rate
"""

from __future__ import annotations

import numpy as np
import torch

import pyro_fed as pf
from pyro_fed.graph.mixing import mix

VALUES = np.array([0.0, 0.5, 1.0, -0.4])  # θ* is the first
INFORMED, UNINFORMED = 1.0, 0.1


def slope(graph: pf.graph.Graph, strength: np.ndarray, rounds: int, repeats: int, seed: int) -> tuple[float, float]:
    """Slope of -log of the largest belief in a wrong parameter, mean over all; share of agents that are wrong."""
    rng = np.random.default_rng(seed)
    agents = graph.num_agents
    belief = torch.zeros(agents, repeats, len(VALUES), dtype=torch.float64)
    middle = belief
    for t in range(rounds):
        y = strength[:, None] * VALUES[0] + rng.standard_normal((agents, repeats))
        log_lik = -0.5 * (y[..., None] - strength[:, None, None] * VALUES) ** 2
        public = torch.log_softmax(belief + torch.from_numpy(log_lik), -1)
        belief = torch.log_softmax(mix(graph.weights(t, rng), public), -1)
        if t + 1 == rounds // 2:
            middle = belief
    # Each wrong parameter decays at its own rate: the slowest mean slope is K. The first half burns in.
    decay = (middle - belief)[..., 1:].mean((0, 1)) / (rounds - rounds // 2)
    return float(decay.min()), float((belief.argmax(-1) != 0).double().mean())


def rate(graph: pf.graph.Graph, strength: np.ndarray) -> float:
    """K(Θ) of Eq. (5)."""
    information = 0.5 * strength[:, None] ** 2 * (VALUES[0] - VALUES[1:]) ** 2
    return float((graph.centrality() @ information).min())


def cases() -> dict[str, tuple[pf.graph.Graph, np.ndarray]]:
    centre, edge, all_alike = (np.full(9, UNINFORMED) for _ in range(3))
    centre[0] = edge[1] = INFORMED
    all_alike[:] = INFORMED
    return {
        "star a=0.1, centre informed": (pf.graph.star(9, 0.1), centre),
        "star a=0.7, centre informed": (pf.graph.star(9, 0.7), centre),
        "star a=0.7, edge informed": (pf.graph.star(9, 0.7), edge),
        "ring, one informed": (pf.graph.ring(9), centre),
        "small world, all informed": (pf.graph.small_world(9, 4, 0.3), all_alike),
    }


def main(rounds: int = 4000, repeats: int = 40) -> list[tuple[str, float, float]]:
    found = []
    for name, (graph, strength) in cases().items():
        k = rate(graph, strength)
        measured, wrong = slope(graph, strength, rounds, repeats, seed=1)
        found.append((name, k, measured))
        print(f"{name:30s} K = {k:.5f}  measured {measured:.5f}  ratio {measured / k:.3f}  wrong {wrong:.3f}")
    return found


if __name__ == "__main__":
    main()
