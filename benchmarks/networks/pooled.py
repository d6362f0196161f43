"""Networks' posteriors on the pooled rows, by hand in torch, without a federation: what federated ones come close to.

The networks, splits and rows to test on of `benchmarks.networks.calibration`.

    python -m benchmarks.networks.pooled covariance [0 1 2] [--data cancer] [--steps 5000]

Whether a full covariance would predict better than a diagonal one. Adam from the same start fits N(m, S) with S
diagonal, and S = (I + L) diag(s²) (I + L)' with L strictly lower triangular; each step takes four antithetic pairs of
draws, and over the second half the rate falls to zero. The evidence's lower bound and the log density of a test row at
1,000 pairs.

    python -m benchmarks.networks.pooled laplace [0 1 2] [--data wine]

Laplace's approximation, which `FedLapCov` comes close to: the mode by Adam, the generalised Gauss-Newton precision
there (all of it, and its diagonal), and the expected calibration error of 500 draws: of the network at the draws, and
of the network linearised at the mode (Immer, Korzepa & Bauer 2021).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import DATA, federation, logits
from benchmarks.networks.calibration import HIDDEN
from pyro_fed.analysis.judging.calibration import calibration_errors

#: Antithetic pairs of a step, and of the figures; draws that are looked at together.
PAIRS, MANY, TOGETHER = 4, 1000, 200
#: Adam's rates of means and log SDs, and of L; SDs at the start, of the means about zero and of q.
RATE, LOWER_RATE, START, WIDTH = 0.01, 0.001, 0.1, 0.1


#: Of Laplace's approximation: Adam's steps to the mode and their size, and draws.
MODE_STEPS, MODE_RATE, DRAWS = 3000, 0.02, 500


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


def errors(seed: int, data: str) -> dict[str, float]:
    """Expected calibration error by what predicts."""
    fed, (rows, labels) = federation(HIDDEN, seed, data)
    x, y = fed.problem.rows[0].double(), fed.problem.rows[1].long()
    rows = rows.double()
    at = partial(logits, hidden=HIDDEN, classes=int(y.max()) + 1)
    generator = torch.Generator().manual_seed(seed)
    w = (0.3 * torch.randn(fed.problem.dim, generator=generator, dtype=torch.float64)).requires_grad_()
    optimiser = torch.optim.Adam([w], lr=MODE_RATE)
    for _ in range(MODE_STEPS):
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


def compare_covariances(splits: list[int], data: str, steps: int) -> None:
    """Print the bound and the log density by covariance."""
    print(heading("split", "covariance", "bound", "log density"))
    for kind in ("diagonal", "full"):
        found = []
        for seed in splits:
            found.append(measured(data, seed, kind == "full", steps))
            print(row(seed, kind, f"{found[-1][0]:.1f}", f"{found[-1][1]:.3f}"), flush=True)
        print(row("all", kind, *(spread(values) for values in zip(*found, strict=True))), flush=True)


def compare_laplace(splits: list[int], data: str) -> None:
    """Print the calibration errors of Laplace's approximation."""
    found = [errors(seed, data) for seed in splits]
    print(heading("precision at the mode, and what predicts", "ECE"))
    for name in found[0]:
        values = [one[name] for one in found]
        print(row(name, f"{spread(values)}, {min(values):.3f} to {max(values):.3f}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["covariance", "laplace"])
    parser.add_argument("splits", type=int, nargs="*")
    parser.add_argument("--data", choices=DATA, help="cancer, or wine of Laplace's approximation, by default")
    parser.add_argument("--steps", type=int, default=10000, help="of Adam, of the covariances")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "covariance":
        compare_covariances(given.splits or [6, 1, 3, 0, 5], given.data or "cancer", given.steps)
    else:
        compare_laplace(given.splits or list(range(5)), given.data or "wine")


if __name__ == "__main__":
    main()
