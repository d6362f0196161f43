"""A star of nine agents on digits, its centre better informed (Wang et al., Section V-B2, Fig. 3), in small.

The centre holds labels 2-9, eight agents around it share labels 0 and 1. The more confidence a they have in
the centre, the larger its eigenvector centrality, and the faster and better all agents learn.
scikit-learn's digits (1,545 training rows of 8 by 8) in place of MNIST, 30 hidden units in place of two
layers of 200, 60 rounds in place of 800, and so Adam at 0.02 for 0.001, in weights; first beliefs are a tenth as wide
as the prior.

    python -m benchmarks.papers.p2p_star [--out figure.png]
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.p2p_digits import PUBLISHED, Kept, digits, model, run_accuracy

CONFIDENCES = (0.1, 0.2, 0.3, 0.5, 0.7)


def federation(train: tuple[torch.Tensor, torch.Tensor], seed: int = 0) -> pf.Federation:
    """The centre is client 0."""
    x, y = train
    rng = np.random.default_rng(seed)
    centre = np.flatnonzero(y.numpy() >= 2)
    around = np.array_split(rng.permutation(np.flatnonzero(y.numpy() < 2)), 8)
    return pf.Federation.from_clients(model, [(x[i], y[i]) for i in [centre, *around]], plate="data")


def main(rounds: int = 60, every: int = 5) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Mean accuracy of all agents by round, for each confidence."""
    train, test = digits()
    fed = federation(train)
    found = {}
    for a in CONFIDENCES:
        graph = pf.graph.star(9, a)
        update = pf.infer.update.SVI(steps=20, batch_size=20, step_size=0.02, units="parameters", round_decay=0.99)
        algorithm = Kept(**PUBLISHED, width=0.1, update=update)
        at, by_agent = run_accuracy(algorithm, fed, graph, rounds, every, test)
        mean = by_agent.mean(1)
        found[a] = at, mean
        reached = at[np.argmax(mean >= 0.8)] if (mean >= 0.8).any() else None
        print(
            f"a = {a}: centre's centrality {graph.centrality()[0]:.2f}, mean accuracy {mean[-1]:.3f}, "
            f"area {mean.mean():.3f}, 80 % after {reached} rounds, centre {by_agent[-1, 0]:.3f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    out = parser.parse_args().out
    curves = main()
    if out:
        fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
        for a, (at, mean) in curves.items():
            ax.plot(at, mean, label=f"a = {a}")
        ax.set(xlabel="round", ylabel="mean test accuracy")
        ax.legend()
        fig.savefig(out, dpi=120)
