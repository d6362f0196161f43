"""Whether a full covariance would predict better than a diagonal one: pooled variational inference by hand, in torch.

    python -m benchmarks.networks.full_covariance                            # cancer, five splits
    python -m benchmarks.networks.full_covariance 0 1 2 --data wine --steps 5000

The networks, splits and rows to test on of `benchmarks.networks.calibration`; no federation. Adam from the same start
fits N(m, S) with S diagonal, and S = (I + L) diag(s²) (I + L)' with L strictly lower triangular; each step takes four
antithetic pairs of draws, and over the second half the rate falls to zero. The evidence's lower bound and the log
density of a test row at 1,000 pairs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import DATA, federation, logits
from benchmarks.networks.calibration import HIDDEN

#: Antithetic pairs of a step, and of the figures; draws that are looked at together.
PAIRS, MANY, TOGETHER = 4, 1000, 200
#: Adam's rates of means and log SDs, and of L; SDs at the start, of the means about zero and of q.
RATE, LOWER_RATE, START, WIDTH = 0.01, 0.001, 0.1, 0.1


def log_lik(z: Tensor, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Of each row, (S, N), at the network's vectors (S, D)."""
    return logits(z, x, HIDDEN, classes).log_softmax(-1)[:, torch.arange(len(y)), y]


class Gaussian(NamedTuple):
    """Mean, log SDs, and L, whose diagonal and upper half are left out; None of a diagonal covariance."""

    mean: Tensor
    log_sd: Tensor
    lower: Tensor | None

    def draws(self, pairs: int, generator: torch.Generator) -> Tensor:
        """Antithetic, (2 pairs, D)."""
        eps = torch.randn(pairs, len(self.mean), generator=generator)
        eps = torch.cat([eps, -eps])
        turned = eps if self.lower is None else eps + eps @ self.lower.tril(-1).T
        return self.mean + self.log_sd.exp() * turned

    def entropy(self) -> Tensor:
        """Nats: L does not change the volume."""
        return self.log_sd.sum() + len(self.mean) * (1 + math.log(2 * math.pi)) / 2


def fitted(log_joint: Callable[[Tensor], Tensor], dim: int, full: bool, steps: int, seed: int) -> Gaussian:
    """The Gaussian after so many steps of Adam."""
    generator = torch.Generator().manual_seed(seed)
    mean = (START * torch.randn(dim, generator=generator)).requires_grad_()
    log_sd = torch.full((dim,), math.log(WIDTH)).requires_grad_()
    lower = torch.zeros(dim, dim).requires_grad_() if full else None
    q = Gaussian(mean, log_sd, lower)
    groups = [{"params": [mean, log_sd], "lr": RATE}]
    groups += [] if lower is None else [{"params": [lower], "lr": LOWER_RATE}]
    adam = torch.optim.Adam(groups)
    falling = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min(1.0, 2 * (1 - step / steps)))
    for _ in range(steps):
        adam.zero_grad()
        loss = -log_joint(q.draws(PAIRS, generator)).mean() - q.entropy()
        loss.backward()
        adam.step()
        falling.step()
    return q


def measured(data: str, seed: int, full: bool, steps: int) -> tuple[float, float]:
    """The bound, and the log density of a test row."""
    fed, (x_test, y_test) = federation(HIDDEN, seed, data)
    x, y = fed.problem.rows
    classes = int(y.max()) + 1

    def log_joint(z: Tensor) -> Tensor:
        prior = -z.square().sum(-1) / 2 - z.shape[-1] * math.log(2 * math.pi) / 2
        return log_lik(z, x, y, classes).sum(-1) + prior

    q = fitted(log_joint, fed.problem.dim, full, steps, seed)
    with torch.no_grad():
        draws = q.draws(MANY, torch.Generator().manual_seed(seed)).split(TOGETHER)
        bound = torch.cat([log_joint(some) for some in draws]).mean() + q.entropy()
        rows = torch.cat([log_lik(some, x_test, y_test, classes) for some in draws])
    return float(bound), float((rows.logsumexp(0) - math.log(len(rows))).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splits", type=int, nargs="*", default=[6, 1, 3, 0, 5])
    parser.add_argument("--data", choices=DATA, default="cancer")
    parser.add_argument("--steps", type=int, default=10000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("split", "covariance", "bound", "log density"))
    for kind in ("diagonal", "full"):
        found = []
        for seed in given.splits:
            found.append(measured(given.data, seed, kind == "full", given.steps))
            print(row(seed, kind, f"{found[-1][0]:.1f}", f"{found[-1][1]:.3f}"), flush=True)
        means = [spread(list(values)) for values in zip(*found, strict=True)]
        print(row("all", kind, *means), flush=True)


if __name__ == "__main__":
    main()
