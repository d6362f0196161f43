"""Peer to peer beside FedAvg where agents see different features of the same labels (Wang et al., Fig. 2), in small.

    python -m benchmarks.papers.p2p_feature_skew [--agents 20] [--rounds 200]

scikit-learn's digits in place of FEMNIST's writers: within each digit the images are sorted by
their first principal component and cut, so that every agent has all ten digits in its own hand
(`partition.FeatureSkew`). A complete graph with W_ij = 1/N, local epochs E = 1 and B = 10 as in the paper, a network of
30 hidden units for its convolutions. FedAvg has the same batches and epochs, at the rate that is best of three.
Also `P2PVI` by default, which counts each row once. Accuracy at each agent's mean, averaged over agents.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.p2p_digits import PUBLISHED, accuracy, digits, final_accuracy, model
from pyro_fed.results.to_arviz import unconstrained_draws

#: Section V-B1: rows a step, and the decay of the rate by round.
BATCH, DECAY = 10, 0.99
#: Adam's rate, in weights, which is 0.001 in the paper's 3,000 rounds, and the first beliefs' SDs over the prior's.
RATE, WIDTH = 0.01, 0.1
#: Rates that FedAvg is tried with; the paper has Adam at 0.001.
RATES = (0.03, 0.1, 0.3)


def federation(agents: int, skewed: bool) -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """Training rows by agent, and test rows."""
    (x, y), test = digits()
    centred = x - x.mean(0)
    feature = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[0]
    partition = pf.partition.FeatureSkew(feature=feature, by=y) if skewed else pf.partition.IID()
    return pf.Federation(model, (x, y), plate="data", num_clients=agents, partition=partition), test


def averaged(fed: pf.Federation, test: tuple[Tensor, Tensor], rounds: int, steps: int, rate: float) -> float:
    """FedAvg's accuracy."""
    algorithm = pf.FedAvg(chain_steps=steps, batch_size=BATCH, step_size=rate, momentum=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a point, after rounds that are fixed
        idata: Any = pf.run(algorithm, fed, num_rounds=rounds, log_likelihood=False, progress=False, audit=False)
    return float(accuracy(fed.problem, unconstrained_draws(idata, fed.problem)[0], test).mean())


def main() -> None:
    """Print the accuracies, with the features skewed and not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    for skewed in (True, False):
        fed, test = federation(options.agents, skewed)
        steps = max(1, fed.num_rows // options.agents // BATCH)
        graph = pf.graph.complete(options.agents)
        published = {
            **PUBLISHED,
            "trace": False,
            "width": WIDTH,
            "update": pf.infer.update.SVI(
                steps=steps, batch_size=BATCH, step_size=RATE, units="parameters", round_decay=DECAY
            ),
        }
        print(f"\n{options.agents} agents, {'features skewed' if skewed else 'dealt evenly'}, {options.rounds} rounds")
        for name, settings in (("P2PVI as published", published), ("P2PVI by default", {})):
            by_agent = final_accuracy(settings, fed, graph, options.rounds, test)
            print(f"{name:20}{by_agent.mean():8.3f}", flush=True)
        best = max(averaged(fed, test, options.rounds, steps, rate) for rate in RATES)
        print(f"{'FedAvg':20}{best:8.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
