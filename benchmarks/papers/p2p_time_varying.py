"""Rotating stars on digits (Wang et al., Section V-B3, Fig. 4), in small, beside a star that never rotates.

N agents around a centre, N_0 of them awake at a time, data IID, confidence a = 0.5. scikit-learn's digits
in place of MNIST: about 59 rows an agent for N = 25 and 15 for N = 100. Each agent works as often in both
graphs.

    python -m benchmarks.papers.p2p_time_varying [--rows 2307] [--published] [--width 0.2] [--exact] [N ...]

--rows gives every agent so many rows, as in the paper (2,307 for N = 25): training images shifted by up to a pixel,
with noise. The test images stay as they are.

--published takes the paper's u, B and decay of the rate by round (Table II) and 1,000 rounds, --width begins with
narrower beliefs, --exact is `P2PVI` by default: each row counts once, however often an agent comes back to it.

`docs/papers/p2p.md` has the figures, and what follows from them.
"""

from __future__ import annotations

import argparse

import torch

import pyro_fed as pf
from benchmarks.helpers.p2p_digits import PUBLISHED, digits, final_accuracy, jittered, model

#: By N: N_0, local updates a round, and how often each agent around the centre works.
SETTINGS = {25: (5, 20, 120), 100: (10, 40, 60)}
#: The same with the paper's rows, Table II: u and B (an epoch of 2,307 rows, two of 594), and 1,000 rounds.
AS_PUBLISHED = {25: (47, 50, 200), 100: (120, 10, 100)}
#: Decay of Adam's rate by round, Table II.
DECAY = {25: 0.99, 100: 0.998}


def run(
    sizes: tuple[int, ...] = tuple(SETTINGS),
    rows: int | None = None,
    visits: int | None = None,
    published: bool = False,
    width: float = 1.0,
    exact: bool = False,
) -> dict[tuple[int, str], float]:
    """Mean accuracy of all agents, for each N."""
    images, test = digits()
    found = {}
    for around in sizes:
        group, steps, usual = SETTINGS[around]
        batch_size, decay = 10, 1.0
        if published:
            (steps, batch_size, usual), decay = AS_PUBLISHED[around], DECAY[around]
        worked = visits or usual
        train = images if rows is None else jittered(images, rows * (around + 1))
        fed = pf.Federation(model, train, plate="data", num_clients=around + 1)
        update = pf.update.SVI(steps=steps, batch_size=batch_size, round_decay=decay)
        algorithm = {} if exact else {**PUBLISHED, "width": width, "trace": False, "update": update}
        graphs = {
            "rotating": (pf.graph.rotating_stars(around, group), worked * around // group),
            "fixed": (pf.graph.star(around + 1, 0.5), worked),
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


def together(rounds: int = 150, width: float = 1.0) -> float:
    """Accuracy of one agent that has all images, by the paper's batches and steps: what the method can do on these."""
    train, test = digits()
    fed = pf.Federation(model, train, plate="data", num_clients=1)
    steps, batch_size, _ = AS_PUBLISHED[25]
    update = pf.update.SVI(steps=steps, batch_size=batch_size, round_decay=DECAY[25])
    algorithm = {**PUBLISHED, "width": width, "trace": False, "update": update}
    accuracy = float(final_accuracy(algorithm, fed, pf.graph.complete(1), rounds, test)[0])
    print(f"one agent with all rows, {rounds} rounds: accuracy {accuracy:.3f}", flush=True)
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--rows", type=int, help="rows an agent; by default those there are")
    parser.add_argument("--visits", type=int, help="how often each agent around the centre works")
    parser.add_argument("--published", action="store_true", help="the paper's steps, batches and rounds")
    parser.add_argument("--width", type=float, default=1.0, help="SDs of the first beliefs, a share of the prior's")
    parser.add_argument("--exact", action="store_true", help="P2PVI by default: each row counts once")
    options = parser.parse_args()
    sizes = tuple(options.sizes) or tuple(SETTINGS)
    if not options.exact:
        together(width=options.width)
    run(sizes, options.rows, options.visits, options.published, options.width, options.exact)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
