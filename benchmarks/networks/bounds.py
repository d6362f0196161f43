"""Whether federated sites of a network end where variational inference on the pooled rows does: the bound of both.

    python -m benchmarks.networks.bounds [--data cancer] [--seeds 4] [--steps 2000 10000]

The networks, data and rows to test on of `benchmarks.networks.calibration`. The evidence's lower bound of the diagonal
Gaussian that `FedEP` ends at by default, and of Pyro's SVI on the pooled rows with the same family after so many steps,
both at the same antithetic draws; the log density of a test row; and entropy (nats) on rows unlike the data.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Any

import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import DATA, entropy_away, federation, quiet
from benchmarks.networks.calibration import HIDDEN
from pyro_fed.results.to_arviz import unconstrained_draws

#: Antithetic pairs of draws for the bound.
PAIRS = 200


def bound(fed: pf.Federation, draws: Tensor) -> float:
    """The evidence's lower bound of the diagonal Gaussian that draws are of."""
    problem, mean, sd = fed.problem, draws.mean(0), draws.std(0)
    eps = torch.randn(PAIRS, len(mean), generator=torch.Generator().manual_seed(0))
    densities = [problem.log_parts(z, problem.rows) for z in mean + sd * torch.cat([eps, -eps])]
    log_joint = torch.stack([log_prior + log_lik.sum() for log_prior, log_lik in densities]).mean()
    return float(log_joint + sd.log().sum() + len(mean) * (1 + math.log(2 * math.pi)) / 2)


def measured(algorithm: Any, data: str, seed: int) -> tuple[float, float, float]:
    """The bound, the log density of a test row, and entropy away from the data."""
    fed, test = federation(HIDDEN, seed, data)
    with quiet():
        idata = pf.run(algorithm, fed, seed=seed, progress=False, audit=False, log_likelihood=False)
    draws = torch.as_tensor(unconstrained_draws(idata, fed.problem)).float()
    density = float(pf.metrics.test_metrics(idata, fed, test)["log_predictive_density"])
    return bound(fed, draws), density, entropy_away(idata, fed, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="cancer")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs="+", default=[2000, 10000])
    given = parser.parse_args()
    torch.set_num_threads(1)
    pooled = partial(pf.infer.SVI, guide=AutoDiagonalNormal, num_samples=1)
    runs = {"`FedEP`": pf.FedEP()} | {f"pooled SVI, {steps:,} steps": pooled(num_steps=steps) for steps in given.steps}
    print(heading("algorithm", "bound", "log density", "entropy away"))
    for name, algorithm in runs.items():
        found = zip(*(measured(algorithm, given.data, seed) for seed in range(given.seeds)), strict=True)
        print(row(name, *(spread(values) for values in found)), flush=True)


if __name__ == "__main__":
    main()
