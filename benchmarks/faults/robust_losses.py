"""Rows that are wrong: errors of ordinary Bayes and of robust losses (FedGVI), by the share of wrong rows.

Ten clients of 100 rows, an intercept and two weights. "regression": unit noise, a share of rows at three clients has 10
added. "logistic": a share of the labels at three clients is flipped; "certain labels" has weights of four times the
size, so that the model is sure of most rows. A cell is the largest error of a posterior mean, in SDs of the posterior
of the same rows without the fault, which `FedEP` gives too; the mean over seeds.

    python -m benchmarks.faults.robust_losses [SEEDS]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row

CLIENTS, ROWS, WRONG_CLIENTS = 10, 100, 3
SHARES = (0.0, 0.1, 0.3)
WEIGHTS = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
LOSSES = {
    "ordinary Bayes": None,
    "density power 0.2": pf.losses.DensityPower(beta=0.2),
    "density power 0.5": pf.losses.DensityPower(beta=0.5),
    "cross entropy 0.7": pf.losses.GeneralisedCrossEntropy(delta=0.7),
}


def regression(x: Tensor, y: Tensor) -> None:
    """An intercept and two weights, unit noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3).to(x), 2.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def logistic(x: Tensor, y: Tensor) -> None:
    """An intercept and two weights."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3).to(x), 2.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


#: Model and factor of the weights by name.
CASES = {"regression": (regression, 1.0), "logistic": (logistic, 1.0), "certain labels": (logistic, 4.0)}


def rows_of(case: str, share: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Covariates, outcomes, and outcomes with the fault at the first clients."""
    model, factor = CASES[case]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CLIENTS * ROWS, 3, generator=generator, dtype=torch.float64)
    x[:, 0] = 1.0
    wrong = torch.rand(len(x), generator=generator) < share
    wrong[WRONG_CLIENTS * ROWS :] = False
    if model is regression:
        y = x @ WEIGHTS + torch.randn(len(x), generator=generator, dtype=torch.float64)
        return x, y, y + 10 * wrong
    y = (torch.rand(len(x), generator=generator) < torch.sigmoid(factor * x @ WEIGHTS)).double()
    return x, y, torch.where(wrong, 1 - y, y)


def fitted(model: Callable[..., Any], x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Means and SDs of FedEP's posterior."""
    where = [torch.arange(k * ROWS, (k + 1) * ROWS) for k in range(CLIENTS)]
    fed = pf.Federation(model, (x, y), plate="rows", num_clients=CLIENTS, partition=pf.partition.Explicit(where))
    quiet: dict[str, Any] = {"progress": False, "num_draws": 4000, "log_likelihood": False, "audit": False}
    idata: Any = pf.run(pf.FedEP(), fed, **quiet)
    draws = idata.posterior["w"].values.reshape(-1, 3)
    return draws.mean(0), draws.std(0)


@functools.cache
def without_fault(case: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and SDs of the rows without the fault, which are the same whatever the share of wrong ones."""
    x, y, _ = rows_of(case, 0.0, seed)
    return fitted(CASES[case][0], x, y)


def error_of(case: str, loss: pf.losses.Loss | None, share: float, seed: int) -> float:
    """The largest error of a mean with a share of wrong rows, in SDs."""
    model, (mean, sd), (x, _, y) = CASES[case][0], without_fault(case, seed), rows_of(case, share, seed)
    found = fitted(model if loss is None else pf.losses.with_loss(model, loss), x, y)[0]
    return float(np.abs((found - mean) / sd).max())


def main() -> None:
    """Print the table."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(heading("rows", "loss", *(f"{share:.0%} wrong" for share in SHARES)))
    for case, (model, _) in CASES.items():
        for name, loss in LOSSES.items():
            if model is regression and name.startswith("cross"):
                continue  # takes finitely many values
            cells = [np.mean([error_of(case, loss, share, seed) for seed in seeds]) for share in SHARES]
            print(row(case, name, *(f"{cell:.2f}" for cell in cells)), flush=True)


if __name__ == "__main__":
    main()
