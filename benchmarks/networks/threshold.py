"""Both sides of the size at which defaults change: the same networks by the defaults of small and of large models.

    python -m benchmarks.networks.threshold [--data cancer digits wine] [--seeds 3] [--algorithms FedEP P2PVI]
    python -m benchmarks.networks.threshold --sides large --seeds 5 --algorithms FedEP
    python -m benchmarks.networks.threshold --data digits --hidden 5 --sides large --seeds 5

Below it `FedEP` and `P2PVI` take full covariances and exact curvatures, above it diagonal sites from stochastic
gradients; `FSGLD` and `DSVGD` take more chains and particles below it, and minibatches above. Each network is run by
both, set by hand, whatever it would take by itself; a star is beside what it takes. Networks, data and partitions are
those of `benchmarks.networks`, ten clients, `P2PVI` on a ring; whole runs with their draws, seconds of the processor
with compiling; mean ± standard error over seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from benchmarks.networks.__main__ import CLIENTS, DATA, federation, quiet, scores
from pyro_fed.infer.langevin.chain_diagnostics import USUAL_CHAINS
from pyro_fed.policy import gaussian, resolve, sampling, stein
from pyro_fed.policy.gaussian import SMALL_ROUNDS

#: Hidden units of the networks below and above, by their data.
SIZES = {"cancer": (2, 4), "digits": (1, 2), "wine": (5, 12)}
SIDES = ("small", "large")
#: More parameters than any of them has: full covariances and exact curvatures at all of them.
EXACT_DIM = 1000
#: What `FSGLD` and `DSVGD` take of large models.
CHAINS: dict[str, Any] = {
    "local_steps": sampling.STEPS,
    "batch_size": gaussian.LARGE_BATCH,
    "thin": sampling.THIN,
    "target_ess": None,
    "num_chains": USUAL_CHAINS,
}
PARTICLES: dict[str, Any] = {
    "num_particles": stein.PARTICLES,
    "batch_size": gaussian.LARGE_BATCH,
    "local_steps": stein.SHORT_TURN,
    "step_size": stein.SHORT_STEP,
    "start": "gaussian",
}


def by_hand(kind: Any, names: Iterable[str]) -> Any:
    """The algorithm with these defaults of small models set, so that they stay on a large one."""
    return kind(**{name: getattr(kind(), name) for name in names})


#: By algorithm: the defaults of small models, those of large ones, and what a run needs besides.
ALGORITHMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "FedEP": (
        pf.FedEP(covariance="full"),
        pf.FedEP(covariance="diag", client=pf.infer.tilted.IVON(rounds=SMALL_ROUNDS), start="fedavg"),
        {},
    ),
    "P2PVI": (
        pf.P2PVI(covariance="full"),
        pf.P2PVI(covariance="diag", update=pf.infer.update.IVON(rounds=SMALL_ROUNDS), start="fedavg"),
        {"graph": pf.graph.ring(CLIENTS)},
    ),
    "FSGLD": (by_hand(pf.FSGLD, CHAINS), pf.FSGLD(**CHAINS), {}),
    "DSVGD": (by_hand(pf.DSVGD, PARTICLES), pf.DSVGD(**PARTICLES), {}),
}


def one(algorithm: Any, hidden: int, seed: int, data: str, options: dict[str, Any]) -> list[float]:
    """Accuracy, log density, ECE, seconds, rounds."""
    fed, test = federation(hidden, seed, data)
    began = time.process_time()
    with quiet():
        idata = pf.run(algorithm, fed, seed=seed, progress=False, log_likelihood=False, audit=False, **options)
    seconds = time.process_time() - began
    rounds = float((idata["federation"]["bytes_up"].sum("client") > 0).sum())
    return [*scores(idata, fed, test), seconds, rounds]


#: Settings that are chosen on every model.
OPEN = ("covariance", "curvature", "start", "surrogates")


def takes_large(name: str, problem: Any) -> bool:
    """Whether the algorithm by default takes the defaults of large models for this one."""
    algorithm = getattr(pf.infer, name)()
    chosen = resolve(algorithm, problem.traits).choices
    return any(
        one.override and one.value != getattr(algorithm, one.setting) for one in chosen if one.setting not in OPEN
    )


def table(names: list[str], data: list[str], hidden_units: list[int] | None, seeds: int, sides: list[str]) -> None:
    """A row a network, algorithm and set of defaults."""
    figures_of = ("accuracy", "log density", "ECE", "seconds", "rounds", "seeds")
    print(heading("data, parameters", "algorithm", "defaults of", *figures_of))
    for kind in data:
        for hidden in hidden_units or SIZES[kind]:
            problem = federation(hidden, 0, kind)[0].problem
            for name in names:
                *both, options = ALGORITHMS[name]
                takes = takes_large(name, problem)
                for large, algorithm in enumerate(both):
                    if SIDES[large] not in sides:
                        continue
                    figures = np.array([one(algorithm, hidden, seed, kind, options) for seed in range(seeds)])
                    mean, error = figures.mean(0), figures.std(0) / max(1, seeds - 1) ** 0.5
                    shown = [f"{mean[at]:.3f} ± {error[at]:.3f}" for at in range(3)]
                    size = f"{SIDES[large]} models" + (" *" if takes == bool(large) else "")
                    cells = [f"{kind}, {problem.dim}", f"`{name}`", size, *shown, f"{mean[3]:.1f}", f"{mean[4]:.0f}"]
                    print(row(*cells, seeds), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=sorted(SIZES))
    parser.add_argument("--hidden", nargs="+", type=int, help="units, in place of those below and above by their data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="whose defaults")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table(given.algorithms, given.data, given.hidden, given.seeds, given.sides)


if __name__ == "__main__":
    main()
