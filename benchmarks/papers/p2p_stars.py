"""Stars of agents on digits (Wang et al., Sections V-B2 and V-B3, Fig. 3 and 4), in small.

Fig. 4, rotating stars beside a star that never rotates:

N agents around a centre, N_0 of them awake at a time, data IID, confidence a = 0.5. scikit-learn's digits
in place of MNIST: about 59 rows an agent for N = 25 and 15 for N = 100. Each agent works as often in both
graphs.

    python -m benchmarks.papers.p2p_stars [--rows 2307] [--published] [--rate R] [--sds] [--exact] [N ...]

--rows gives every agent so many rows, as in the paper (2,307 for N = 25): training images shifted by up to a pixel,
with noise. The test images stay as they are.

--published takes the paper's u and B (Table II) and 1,000 rounds; Adam's rate is one of the weights, as in the paper,
and falls by 0.998 a round (Table II, N = 100; 0.99 for N = 25). The paper has a rate of 0.001 and does not say how wide
beliefs are at first: here 0.005, and a tenth of the prior's SDs (`--width`). --sds takes the rate, 0.05, in SDs of the
belief in its place, which is what this package had: beliefs that narrow slow their means down.
--exact is `P2PVI` by default: each row counts once, however often an agent comes back to it.

`docs/papers/p2p.md` has the figures, and what follows from them.

--data fashion takes Fashion-MNIST in place of the digits, with as many pixels a side as --side has (28, 14 or 7): its
60,000 training images are dealt out without any jitter.

Fig. 3, `python -m benchmarks.papers.p2p_stars --informed [--out figure.png]`: the centre of nine agents holds labels
2-9, eight agents around it share labels 0 and 1; of Fashion-MNIST these are trouser, sandal, sneaker and ankle boot.
The more confidence a they have in the centre, the larger its eigenvector centrality, and the faster and better all
agents learn. 1,545 training rows in place of MNIST, 30 hidden units in place of two layers of 200, 60 rounds in place
of 800, and so Adam at 0.02 for 0.001, in weights; first beliefs are a tenth as wide as the prior.
With Fashion-MNIST all rows, u, B, and Adam's rate and decay are those of Table I.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.fashion_mnist import fashion_mnist, found_folder
from benchmarks.helpers.p2p_digits import (
    PUBLISHED,
    Kept,
    at_mean_and_by_draws,
    digits,
    final_accuracy,
    jittered,
    model,
    run_accuracy,
)

#: Fig. 3.
CONFIDENCES = (0.1, 0.2, 0.3, 0.5, 0.7)
#: By N: N_0, local updates a round, and how often each agent around the centre works.
SETTINGS = {25: (5, 20, 120), 100: (10, 40, 60)}
#: The same with the paper's rows, Table II: u and B (an epoch of 2,307 rows, two of 594), and 1,000 rounds.
AS_PUBLISHED = {25: (47, 50, 200), 100: (120, 10, 100)}
#: Fig. 3, by data set: the labels of the agents around the centre, and u, B and Adam's first rate (Table I).
INFORMED = {"digits": ((0, 1), 20, 20, 0.02), "fashion": ((1, 5, 7, 9), 150, 100, 0.001)}
#: Decay of Adam's rate by round, Table II for N = 100, and the first beliefs' SDs, a share of the prior's.
DECAY, WIDTH = 0.998, 0.1


#: A training and a test set.
Data = tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def images(name: str, side: int, folder: Path | None) -> Data:
    """The data set of a name."""
    if name == "digits":
        return digits()
    train, test = fashion_mnist(0, side=side, folder=found_folder(folder))
    return train, test


def dealt(train: tuple[torch.Tensor, torch.Tensor], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many rows: the first ones, or where there are fewer, shifted and with noise."""
    x, y = train
    return (x[:rows], y[:rows]) if rows <= len(x) else jittered(train, rows)


def run(
    data: Data,
    sizes: tuple[int, ...] = tuple(SETTINGS),
    rows: int | None = None,
    published: bool = False,
    how: Mapping[str, Any] | None = None,
    exact: bool = False,
    visits: int | None = None,
) -> dict[tuple[int, str], float]:
    """Mean accuracy of all agents, for each N; `how` as of `settings`, `visits` how often each agent works."""
    images, test = data
    found = {}
    for around in sizes:
        group, steps, worked = SETTINGS[around]
        batch_size = 10
        if published:
            steps, batch_size, worked = AS_PUBLISHED[around]
        worked = visits or worked
        train = images if rows is None else dealt(images, rows * (around + 1))
        fed = pf.Federation(model, train, plate="data", num_clients=around + 1)
        algorithm = {} if exact else settings(steps, batch_size, **how or {})
        graphs = {
            "rotating": (pf.graph.rotating_stars(around, group), worked * around // group),
            "fixed": (pf.graph.star(around + 1, 0.5), worked),
        }
        for name, (graph, rounds) in graphs.items():
            by_agent, by_draws = at_mean_and_by_draws(algorithm, fed, graph, rounds, test)
            found[around, name] = float(by_agent.mean())
            print(
                f"N = {around:3d} {name:8s} {rounds:4d} rounds: mean accuracy {by_agent.mean():.3f}, centre "
                f"{by_agent[0]:.3f}, worst {by_agent.min():.3f}; Monte Carlo, 20 draws {by_draws.mean():.3f}",
                flush=True,
            )
    return found


def settings(
    steps: int,
    batch_size: int,
    *,
    rate: float = 0.005,
    decay: float = DECAY,
    width: float = WIDTH,
    sds: bool = False,
) -> dict[str, Any]:
    """Of the published algorithm.

    Args:
        steps: u.
        batch_size: B.
        rate: Adam's first, in weights; with `sds` 0.05, in SDs of the belief, and it does not fall.
        decay: its factor from one round to the next.
        width: of the first beliefs' SDs, a share of the prior's; with `sds` the prior's own.
        sds: whether the rate is in SDs.
    """
    if sds:
        return {**PUBLISHED, "trace": False, "update": pf.infer.update.SVI(steps=steps, batch_size=batch_size)}
    update = pf.infer.update.SVI(
        steps=steps, batch_size=batch_size, step_size=rate, units="parameters", round_decay=decay
    )
    return {**PUBLISHED, "width": width, "trace": False, "update": update}


def together(data: Data, rounds: int = 150, **how: Any) -> float:
    """Accuracy of one agent that has all images, by the paper's batches and steps: what the method can do on these."""
    train, test = data
    fed = pf.Federation(model, train, plate="data", num_clients=1)
    steps, batch_size, _ = AS_PUBLISHED[25]
    algorithm = settings(steps, batch_size, **how)
    accuracy = float(final_accuracy(algorithm, fed, pf.graph.complete(1), rounds, test)[0])
    print(f"one agent with all rows, {rounds} rounds: accuracy {accuracy:.3f}", flush=True)
    return accuracy


def informed_federation(
    train: tuple[torch.Tensor, torch.Tensor], around_labels: tuple[int, ...], seed: int = 0
) -> pf.Federation:
    """The centre is client 0."""
    x, y = train
    rng = np.random.default_rng(seed)
    is_around = np.isin(y.numpy(), around_labels)
    centre = np.flatnonzero(~is_around)
    around = np.array_split(rng.permutation(np.flatnonzero(is_around)), 8)
    return pf.Federation.from_clients(model, [(x[i], y[i]) for i in [centre, *around]], plate="data")


def informed(
    data: Data, name: str = "digits", rounds: int = 60, every: int = 5
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Mean accuracy of all agents by round, for each confidence."""
    train, test = data
    labels, steps, batch_size, rate = INFORMED[name]
    fed = informed_federation(train, labels)
    found = {}
    for a in CONFIDENCES:
        graph = pf.graph.star(9, a)
        update = pf.infer.update.SVI(
            steps=steps, batch_size=batch_size, step_size=rate, units="parameters", round_decay=0.99
        )
        algorithm = Kept(**PUBLISHED, width=0.1, update=update)
        at, by_agent = run_accuracy(algorithm, fed, graph, rounds, every, test)
        mean = by_agent.mean(1)
        found[a] = at, mean
        reached = at[np.argmax(mean >= 0.8)] if (mean >= 0.8).any() else None
        by_round = ", ".join(f"{one:.3f} ({r})" for r, one in zip(at[1:], mean[1:], strict=True))
        print(
            f"a = {a}: centre's centrality {graph.centrality()[0]:.2f}, mean accuracy {mean[-1]:.3f}, "
            f"area {mean.mean():.3f}, 80 % after {reached} rounds, centre {by_agent[-1, 0]:.3f}; by round {by_round}",
            flush=True,
        )
    return found


def draw(curves: Mapping[float, tuple[np.ndarray, np.ndarray]], out: str) -> None:
    """Mean accuracy by round."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for a, (at, mean) in curves.items():
        ax.plot(at, mean, label=f"a = {a}")
    ax.set(xlabel="round", ylabel="mean test accuracy")
    ax.legend()
    fig.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--rows", type=int, help="rows an agent; by default those there are")
    parser.add_argument("--published", action="store_true", help="the paper's steps, batches and rounds")
    parser.add_argument("--rate", type=float, default=0.005, help="Adam's rate, in weights")
    parser.add_argument("--decay", type=float, default=DECAY, help="its factor by round")
    parser.add_argument("--visits", type=int, help="how often each agent around the centre works")
    parser.add_argument("--width", type=float, default=WIDTH, help="SDs of the first beliefs, a share of the prior's")
    parser.add_argument("--sds", action="store_true", help="Adam's rate in SDs of the belief, 0.05")
    parser.add_argument("--exact", action="store_true", help="P2PVI by default: each row counts once")
    parser.add_argument("--informed", action="store_true", help="Fig. 3, a centre that is better informed")
    parser.add_argument("--rounds", type=int, default=60, help="of Fig. 3")
    parser.add_argument("--data", choices=tuple(INFORMED), default="digits", help="scikit-learn's, Fashion-MNIST")
    parser.add_argument("--side", type=int, default=14, help="pixels a side of Fashion-MNIST")
    parser.add_argument("--folder", type=Path, help="of the files of Fashion-MNIST")
    parser.add_argument("--out", help="the file of Fig. 3")
    options = parser.parse_args()
    data = images(options.data, options.side, options.folder)
    if options.informed:
        curves = informed(data, options.data, options.rounds)
        return draw(curves, options.out) if options.out else None
    how = {"rate": options.rate, "decay": options.decay, "width": options.width, "sds": options.sds}
    if not options.exact:
        together(data, **how)
    run(
        data,
        tuple(options.sizes) or tuple(SETTINGS),
        options.rows,
        options.published,
        how,
        options.exact,
        options.visits,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
