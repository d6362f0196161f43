"""How long it takes to be as accurate as FedAvg: seconds of the processor until then, and as a ratio to FedAvg's run.

    python -m benchmarks.networks.until --hidden 20 100 1000 --algorithms FedEP FedSEP P2PVI
    python -m benchmarks.networks.until --data cancer wine --hidden 20 --seeds 10

The network and the ten clients of `benchmarks.networks`, one thread. FedAvg has its 50 rounds, without an evaluation;
the others are stopped after the first round of their own at which `DRAWS` draws predict the test rows as well as the
point that FedAvg ended at. What they start from, averaging say, counts in full, as compiling does; the seconds in
which the test rows are predicted do not. Agents of P2PVI on a ring, the first one's belief.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from benchmarks.networks.__main__ import ALGORITHMS, DATA, federation, probabilities, quiet, run
from pyro_fed.results.to_arviz import unconstrained_draws

#: Draws of each evaluation.
DRAWS = 50


class Enough(Exception):  # nothing went wrong
    """As accurate as was wanted."""


def accuracy(idata: Any, fed: pf.Federation, test: Any) -> float:
    """Of the averaged probabilities, of at most `DRAWS` draws."""
    draws = unconstrained_draws(idata, fed.problem)
    probs = probabilities(fed, draws[:: max(1, len(draws) // DRAWS)], test)
    return float((probs.argmax(-1) == test[1]).double().mean())


def seconds_until(name: str, data: str, hidden: int, seed: int, wanted: float) -> tuple[float, int, float]:
    """Seconds until the accuracy is reached (NaN: never), rounds of the algorithm's own, and the accuracy then."""
    fed, test = federation(hidden, seed, data)
    make, own = ALGORITHMS[name]
    state = {"away": 0.0, "rounds": 0, "best": 0.0}
    began = time.process_time()

    def evaluate(idata: Any) -> dict[str, float]:
        entered = time.process_time()
        state["best"], state["rounds"] = accuracy(idata, fed, test), state["rounds"] + 1
        state["away"] += time.process_time() - entered
        if state["best"] >= wanted:
            raise Enough
        return {"accuracy": state["best"]}

    options: dict[str, Any] = {"progress": False, "seed": seed, "num_draws": DRAWS, "log_likelihood": False, **own}
    with quiet():
        try:
            pf.run(make(), fed, evaluate=evaluate, **options)
        except pf.errors.SettingError as error:
            if not isinstance(error.__cause__, Enough):
                raise
            return time.process_time() - began - state["away"], int(state["rounds"]), state["best"]
    return float("nan"), int(state["rounds"]), state["best"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", choices=DATA, nargs="+", default=["digits"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=["FedEP", "FedSEP", "P2PVI"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    titles = ("accuracy wanted, reached", "rounds", "seconds", "× FedAvg", "never")
    print(heading("data, parameters", "algorithm", *titles))
    for data, hidden in ((data, hidden) for data in given.data for hidden in given.hidden):
        known = []
        for seed in range(given.seeds):
            fed, test = federation(hidden, seed, data)
            idata, seconds = run("FedAvg", fed, seed)
            known.append((accuracy(idata, fed, test), seconds))
        for name in given.algorithms:
            every = [seconds_until(name, data, hidden, seed, known[seed][0]) for seed in range(given.seeds)]
            found, own = np.array(every), np.array(known)
            ratio = float(np.median(np.nan_to_num(found[:, 0] / own[:, 1], nan=np.inf)))
            cells = [f"{data}, {fed.problem.dim:,}", f"`{name}`", f"{own[:, 0].mean():.3f}, {found[:, 2].mean():.3f}"]
            cells += [f"{np.median(found[:, 1]):g}", f"{np.nanmedian(found[:, 0]):.1f}", f"{ratio:.2f}"]
            print(row(*cells, int(np.isnan(found[:, 0]).sum())), flush=True)


if __name__ == "__main__":
    main()
