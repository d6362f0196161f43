"""Laplace's approximation of a network's posterior on pooled data, by hand: what `FedLapCov` comes close to.

    python -m benchmarks.networks.pooled_laplace [--data wine] [--seeds 5]

The network, data and rows to test on of `benchmarks.networks.calibration`. The mode by Adam, the generalised
Gauss-Newton precision there (all of it, and its diagonal), and the expected calibration error of 500 draws: of the
network at the draws, and of the network linearised at the mode (Immer, Korzepa & Bauer 2021).
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import DATA, federation, logits
from benchmarks.networks.calibration import HIDDEN
from pyro_fed.analysis.judging.calibration import calibration_errors

STEPS, STEP_SIZE, DRAWS = 3000, 0.02, 500


def errors(seed: int, data: str) -> dict[str, float]:
    """Expected calibration error by what predicts."""
    fed, (rows, labels) = federation(HIDDEN, seed, data)
    x, y = fed.problem.rows[0].double(), fed.problem.rows[1].long()
    rows = rows.double()
    at = partial(logits, hidden=HIDDEN, classes=int(y.max()) + 1)
    generator = torch.Generator().manual_seed(seed)
    w = (0.3 * torch.randn(fed.problem.dim, generator=generator, dtype=torch.float64)).requires_grad_()
    optimiser = torch.optim.Adam([w], lr=STEP_SIZE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(at(w, x), y, reduction="sum") + 0.5 * w.square().sum()
        loss.backward()
        optimiser.step()
    mode = w.detach()

    def jacobian(x: Tensor) -> Tensor:
        return vmap(lambda row: jacrev(lambda v: at(v, row[None])[0])(mode))(x)

    p = at(mode, x).softmax(-1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    j = jacobian(x)
    precision = torch.einsum("nci,ncd,ndj->ij", j, curvature, j) + torch.eye(len(mode), dtype=torch.float64)
    z = torch.randn(DRAWS, len(mode), generator=generator, dtype=torch.float64)
    moves = {
        "all of it": z @ torch.linalg.cholesky(torch.linalg.inv(precision)).T,
        "its diagonal": z / precision.diagonal().sqrt(),
    }
    found = {"the mode": at(mode, rows).softmax(-1)}
    for name, move in moves.items():
        found[f"{name}, draws"] = torch.stack([at(mode + one, rows).softmax(-1) for one in move]).mean(0)
        linear = at(mode, rows) + torch.einsum("nci,si->snc", jacobian(rows), move)
        found[f"{name}, linearised"] = linear.softmax(-1).mean(0)
    return {name: float(calibration_errors(probs, labels)["ece"]) for name, probs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="wine")
    parser.add_argument("--seeds", type=int, default=5)
    given: Any = parser.parse_args()
    torch.set_num_threads(1)
    found = [errors(seed, given.data) for seed in range(given.seeds)]
    print(heading("precision at the mode, and what predicts", "ECE"))
    for name in found[0]:
        values = [one[name] for one in found]
        print(row(name, f"{spread(values)}, {np.min(values):.3f} to {np.max(values):.3f}"))


if __name__ == "__main__":
    main()
