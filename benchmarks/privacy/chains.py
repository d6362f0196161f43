"""Why FSGLD's visits and DSVGD's particles have no differential privacy here, and sums of scores do: what each gives.

    python -m benchmarks.privacy.chains [TRIALS]

The linear regression of `coverage`: 200 clients of 25 rows, three weights, δ = 1e-5, one client's rows protected,
scores shortened to norm 15; all methods are given what they would have to find (the posterior's precision, for steps
and whitening).

* sums: a step by the sum of all clients' scores, noise on the sum (`SummedLangevin`): sensitivity h r / 2 a step.
* visits: a step at one client in turn, its score K times (`FSGLD`, one step a visit, without a surrogate, which would
  be one more release): K h r / 2 a step, of which a client has one in K. At the same noise √h a client's ρ is K times
  that of a sum, and at the same ρ the chain is K times as short, or the temperature K times as high.
* particles: 50 particles by SVGD (`DSVGD`'s kernel and whitening, a step that falls), from two SDs off and half as
  wide again, on the sum of the clients' scores at all of them, clipped at √50 r as one vector, so that noise in each
  entry has SD z √50 r. There is no such algorithm here: it is the best that could be had of particles.
* turns: the same where each client's scores are hidden by themselves, as messages are in `DSVGD`, whose server adopts
  what one client sends and keeps what the others have said: K noises add up, √K times as loud.

Printed, over weights and trials: how many of 90 % intervals hold the truth, the SDs and the error of the mean, over the
exact posterior's SDs.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from benchmarks.helpers.tables import heading, row
from benchmarks.privacy.coverage import (
    CHAIN_ROUNDS,
    CLIENTS,
    DIM,
    EPSILONS,
    INTERVAL,
    LENGTH,
    ROWS,
    linear,
    multiplier,
    outcomes,
    posterior,
)
from pyro_fed.ops.kernels import Balanced
from pyro_fed.ops.stein import svgd_direction

NORM, PARTICLES = 15.0, 50
#: Passes of visits, each of one step at every client; rounds of particles, their first step and when it has halved.
PASSES, STEIN_ROUNDS, STEIN_STEP, STEIN_HALVES = 25, 100, 0.1, 20
#: Where particles start: SDs off, and times as wide.
OFF, WIDE = 2.0, 1.5
#: Precision of the posterior, nearly the same in every direction.
PRECISION = CLIENTS * ROWS


def clipped(scores: Tensor, norm: float) -> Tensor:
    """Scores (K, ...), none longer than a norm."""
    lengths = scores.flatten(1).norm(dim=1).reshape(-1, *[1] * (scores.dim() - 1))
    return scores * (norm / lengths).clamp_max(1.0)


def tempered(rho: float, share: float) -> float:
    """The temperature at which a chain of privacy ρ is `LENGTH` relaxation times long."""
    return max(1.0, LENGTH / (share * 4 * PRECISION * rho / NORM**2))


def by_sums(x: Tensor, y: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """Draws of a chain on sums, from the posterior's mean: burn-in is not the subject."""
    noise = multiplier(epsilon, CHAIN_ROUNDS)
    alpha = tempered(CHAIN_ROUNDS / (2 * noise**2), 1.0)
    return chain(x, y, 4 * alpha**2 / (NORM * noise) ** 2, alpha, CHAIN_ROUNDS, False, generator)


def by_visits(x: Tensor, y: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """Draws of a chain that visits clients in turn."""
    noise = multiplier(epsilon, PASSES)
    alpha = tempered(PASSES / (2 * noise**2), 1.0 / CLIENTS)
    return chain(x, y, 4 * alpha**2 / (CLIENTS * NORM * noise) ** 2, alpha, PASSES * CLIENTS, True, generator)


def chain(x: Tensor, y: Tensor, h: float, alpha: float, steps: int, visits: bool, generator: torch.Generator) -> Tensor:
    """Draws (n, D): Langevin steps whose noise is that of the release, which is that of the temperature."""
    w = torch.from_numpy(posterior(linear, x.flatten(0, 1), y.flatten())[0])
    kept = []
    for step in range(steps):
        at = slice(step % CLIENTS, step % CLIENTS + 1) if visits else slice(None)
        scores = torch.einsum("knd,kn->kd", x[at], y[at] - x[at] @ w)
        total = clipped(scores, NORM).sum(0) * (CLIENTS if visits else 1)
        w = w + h / 2 * (total / alpha - w) + h**0.5 * torch.randn(DIM, generator=generator, dtype=x.dtype)
        kept.append(w)
    return torch.stack(kept)


def by_particles(x: Tensor, y: Tensor, epsilon: float, generator: torch.Generator, louder: float = 1.0) -> Tensor:
    """Particles (N, D)."""
    noise = multiplier(epsilon, STEIN_ROUNDS)
    mean, sd = (torch.from_numpy(part) for part in posterior(linear, x.flatten(0, 1), y.flatten()))
    norm, white = PARTICLES**0.5 * NORM, OFF + WIDE * torch.randn(PARTICLES, DIM, generator=generator, dtype=x.dtype)
    for step in range(STEIN_ROUNDS):
        w = mean + sd * white
        left = y.unsqueeze(-1) - x @ w.T
        total = clipped(torch.einsum("knd,knp->kpd", x, left), norm).sum(0)
        total = total + louder * noise * norm * torch.randn(PARTICLES, DIM, generator=generator, dtype=x.dtype)
        score = (total - w) * sd
        direction = svgd_direction(white, score, Balanced().fit(white))
        white = white + STEIN_STEP / (1 + step / STEIN_HALVES) * direction
    return mean + sd * white


def by_turns(x: Tensor, y: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """The same where every client's message is hidden by itself."""
    return by_particles(x, y, epsilon, generator, CLIENTS**0.5)


def main() -> None:
    """The table."""
    torch.set_num_threads(1)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    print(heading("method", "ε", "held", "SDs", "error"))
    for method in (by_sums, by_visits, by_particles, by_turns):
        for epsilon in EPSILONS:
            found = []
            for seed in range(trials):
                generator = torch.Generator().manual_seed(seed)
                truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
                x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
                y = outcomes(linear, x @ truth, generator)
                mean, sd = posterior(linear, x, y)
                draws = method(x.reshape(CLIENTS, ROWS, DIM), y.reshape(CLIENTS, ROWS), epsilon, generator).numpy()
                low, high = np.quantile(draws, INTERVAL, axis=0)
                inside = (low < truth.numpy()) & (truth.numpy() < high)
                found.append((inside, draws.std(0) / sd, np.abs(draws.mean(0) - mean) / sd))
            held, wide, error = (np.stack(part) for part in zip(*found, strict=True))
            figures = (f"{held.mean():.0%}", f"{np.median(wide):.3g}", f"{np.median(error):.3g}")
            print(row(method.__name__.removeprefix("by_"), f"{epsilon:g}", *figures), flush=True)


if __name__ == "__main__":
    main()
