"""Rotating stars on digits (Wang et al., Section V-B3, Fig. 4), in small, beside a star that never rotates.

N agents around a centre, N_0 of them awake at a time, data IID, confidence a = 0.5. scikit-learn's digits
in place of MNIST: about 59 rows an agent for N = 25 and 15 for N = 100. Each agent works as often in both
graphs.

    python -m benchmarks.papers.p2p_time_varying [N ...]
"""

from __future__ import annotations

import sys

import torch

import pyro_fed as pf
from benchmarks.helpers.p2p_digits import PUBLISHED, digits, final_accuracy, model

#: By N: N_0, local updates a round, and how often each agent around the centre works.
SETTINGS = {25: (5, 20, 120), 100: (10, 40, 60)}


def main(sizes: tuple[int, ...] = tuple(SETTINGS)) -> dict[tuple[int, str], float]:
    """Mean accuracy of all agents, for each N."""
    train, test = digits()
    found = {}
    for around in sizes:
        group, steps, visits = SETTINGS[around]
        fed = pf.Federation(model, train, plate="data", num_clients=around + 1)
        algorithm = {**PUBLISHED, "trace": False, "update": pf.update.SVI(steps=steps, batch_size=10)}
        graphs = {
            "rotating": (pf.graph.rotating_stars(around, group), visits * around // group),
            "fixed": (pf.graph.star(around + 1, 0.5), visits),
        }
        for name, (graph, rounds) in graphs.items():
            by_agent = final_accuracy(algorithm, fed, graph, rounds, test)
            found[around, name] = float(by_agent.mean())
            print(
                f"N = {around:3d} {name:8s} {rounds:4d} rounds: mean accuracy {by_agent.mean():.3f}, centre "
                f"{by_agent[0]:.3f}, worst {by_agent.min():.3f}",
                flush=True,
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tuple(int(size) for size in sys.argv[1:]) or tuple(SETTINGS))
