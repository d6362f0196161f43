"""A step of a network beside the same step written by hand in torch: the same draws, minibatches and particles.

    python -m benchmarks.networks.steps                    # 1,510, 7,510 and 75,010 parameters
    python -m benchmarks.networks.steps --hidden 20

The network of `benchmarks.networks` on the digits, ten clients. The library's step is what `Compiler.scan` takes a step
in a run whose start is cut short, with what it does between steps, compiling left out: the median over the run's
rounds. That by hand is batched over clients, chains or particles, its gradient is autograd's, and it does what the
method says, no more:

    FedAvg    momentum SGD on all rows of ten clients
    FedEP     IVON's step: two draws, opposite to each other, 32 rows, ten clients
    FSGLD     a preconditioned Langevin step at a midpoint with a control variate and a conducive gradient, four chains
    DSVGD     20 particles at one client: scores of 32 rows, surrogates, a kernel's direction, AdaGrad; by the median
              RBF kernel, and by the default `Balanced` kernel, which both sides take from `pyro_fed.ops`

Both are timed in turn in one process of one thread, in seconds of the processor; the least of several repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from benchmarks.networks.__main__ import CLIENTS, federation, quiet
from benchmarks.networks.cost import ShortDSVGD, short_fedep, short_fsgld
from pyro_fed.algorithm import Algorithm
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.kernels import MEDIAN_RBF

COLUMNS, CLASSES = 64, 10
BATCH, CHAINS, PARTICLES = 32, 4, 20
#: To what length IVON's scores are cut, of clients of 144 rows.
MOST = 22.0
REPEATS, STEPS, ROUNDS = 3, 20, 6
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Network:
    """The network on flat parameters, batched."""

    hidden: int

    @property
    def dim(self) -> int:
        return (COLUMNS + 1) * self.hidden + (self.hidden + 1) * CLASSES

    def log_lik(self, z: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Weighted sums of log-likelihoods (G,) of parameters (G, D) on rows (G, B, 64)."""
        sizes = (COLUMNS * self.hidden, self.hidden, self.hidden * CLASSES, CLASSES)
        w1, b1, w2, b2 = z.split(sizes, -1)
        units = torch.baddbmm(b1.unsqueeze(1), x, w1.view(-1, COLUMNS, self.hidden)).relu()
        logits = torch.baddbmm(b2.unsqueeze(1), units, w2.view(-1, self.hidden, CLASSES))
        lost = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        return -(lost * weight).sum(-1)

    def score(self, z: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Their gradients, (G, D)."""
        z = z.detach().requires_grad_()
        return torch.autograd.grad(self.log_lik(z, x, y, weight).sum(), z)[0]


@dataclass(frozen=True)
class Work:
    """Rows, and numbers of the sizes that a method has; what they are does not matter to the time."""

    net: Network
    x: Tensor
    y: Tensor
    rows: Tensor

    def batch(self, count: int, step: int, each: int = 1) -> tuple[Tensor, Tensor]:
        """Rows of a step of so many clients, each as often as it has draws."""
        at = self.rows[step % len(self.rows), :count]
        x, y = self.x[at], self.y[at]
        return (x, y) if each == 1 else (x.repeat_interleave(each, 0), y.repeat_interleave(each, 0))

    def normal(self, *shape: int) -> Tensor:
        """Numbers around zero."""
        return 0.1 * torch.randn(*shape, self.net.dim)


def averaging(work: Work) -> Callable[[], None]:
    """`FedAvg`: momentum on all rows."""
    size = -(-len(work.x) // CLIENTS)
    x = torch.stack([work.x[:size]] * CLIENTS)
    y, weight = torch.stack([work.y[:size]] * CLIENTS), torch.full((CLIENTS, size), 1 / size)

    def steps() -> None:
        z, velocity = work.normal(CLIENTS), work.normal(CLIENTS)
        for _ in range(STEPS):
            velocity = 0.9 * velocity + work.net.score(z, x, y, weight)
            z = z + 0.01 * velocity

    return steps


def ivon(work: Work) -> Callable[[], None]:
    """`FedEP`'s: a pair of draws."""
    noise = work.normal(STEPS, CLIENTS)
    cavity, eta, weight = 1 + work.normal(CLIENTS).abs(), work.normal(CLIENTS), torch.ones(2 * CLIENTS, BATCH)

    def steps() -> None:
        mean, site, velocity = work.normal(CLIENTS), 1 + work.normal(CLIENTS).abs(), work.normal(CLIENTS)
        for step in range(STEPS):
            total = site + cavity
            sd, eps = total.rsqrt(), noise[step]
            away = sd * eps
            both = torch.stack([mean + away, mean - away], 1).flatten(0, 1)
            up, down = work.net.score(both, *work.batch(CLIENTS, step, 2), weight).view(CLIENTS, 2, -1).unbind(1)
            curvature = eps * (down - up) / (2 * sd)
            score = (up + down) / 2 + eta - cavity * mean
            score = score * (MOST / (sd * score).norm(dim=-1, keepdim=True).clamp_min(MOST))
            velocity = 0.9 * velocity + 0.1 * score
            mean = mean + sd * (0.1 * sd * velocity).clamp(-1, 1)
            change = 0.1 * (curvature - site)
            site = site + change + torch.minimum(change.square() / (2 * total), change.abs())

    return steps


def visits(work: Work) -> Callable[[], None]:
    """`FSGLD`'s: at the midpoint and at the control variate's anchor."""
    noise, factor, anchor = work.normal(STEPS, CHAINS), 1 + work.normal(CHAINS).abs(), work.normal(CHAINS)
    pull, slope, whole = work.normal(CHAINS), work.normal(CHAINS), work.normal(CHAINS)
    weight, h, reach = torch.ones(2 * CHAINS, BATCH), 0.01, 40.0

    def steps() -> None:
        z = work.normal(CHAINS)
        for step in range(STEPS):
            eta = h**0.5 * factor * noise[step]
            where = z + 0.5 * eta
            both = torch.stack([where, anchor], 1).flatten(0, 1)
            here, there = work.net.score(both, *work.batch(CHAINS, step, 2), weight).view(CHAINS, 2, -1).unbind(1)
            away = where - anchor
            away = away * (reach / (slope * away.square()).sum(-1, keepdim=True).abs().sqrt()).clamp_max(1.0)
            drift = here - there + whole - where + pull - slope * away
            z = z + 0.5 * h * factor.square() * drift + eta

    return steps


def turns(work: Work, kernel: Kernel) -> Callable[[], None]:
    """`DSVGD`'s: particles in SDs of a Gaussian."""
    centre, unit, weight = work.normal(1), 1 + work.normal(1).abs(), torch.ones(PARTICLES, BATCH)
    linear, slope = work.normal(1), 1 + work.normal(1).abs()

    def steps() -> None:
        z, squares = work.normal(PARTICLES), work.normal(PARTICLES).abs()
        for step in range(STEPS):
            x, y = work.batch(1, step)
            rows = (x.expand(PARTICLES, -1, -1), y.expand(PARTICLES, -1), weight)
            at = centre + unit * z
            score = unit * (work.net.score(at, *rows) - at) + linear - slope * z
            direction = kernel.fit(z, score).velocity(z, z, score)
            squares = 0.9 * squares + 0.1 * direction.square()
            z = z + 0.02 * direction / (squares.sqrt() + 1e-9)

    return steps


#: What is compared: the library's algorithm, whose start is cut short, and the same by hand.
CASES: dict[str, tuple[Callable[[], Algorithm], Callable[[Work], Callable[[], None]]]] = {
    "FedAvg": (pf.FedAvg, averaging),
    "FedEP": (partial(short_fedep, True), ivon),
    "FSGLD": (partial(short_fsgld, True), visits),
    "DSVGD, RBF": (partial(ShortDSVGD, kernel=MEDIAN_RBF), partial(turns, kernel=MEDIAN_RBF)),
    "DSVGD": (ShortDSVGD, partial(turns, kernel=pf.DSVGD().kernel)),
}


def library(algorithm: Algorithm, fed: pf.Federation) -> float:
    """Seconds of a step: the median of its rounds after the first; of all rounds where one call takes them."""
    spent: dict[str, list[float]] = {}
    scan = Compiler.scan

    def timed(self: Compiler, function: Any, *args: Any) -> Any:
        began = time.process_time()
        found = scan(self, function, *args)
        length = next(value for value in args if isinstance(value, int))
        owner = type(getattr(function, "__self__", None)).__name__
        spent.setdefault(f"{owner}.{function.__name__}", []).append((time.process_time() - began) / length)
        return found

    with quiet(), patch.object(Compiler, "scan", timed):
        pf.run(algorithm, fed, num_rounds=ROUNDS, num_draws=10, audit=False, log_likelihood=False, progress=False)
    last = list(spent.values())[-1]
    return statistics.median(last[1:] or last)


def by_hand(steps: Callable[[], None]) -> float:
    """Seconds of a step."""
    steps()
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        steps()
        found.append((time.process_time() - began) / STEPS)
    return statistics.median(found)


def compared(hidden: int, names: list[str]) -> Iterator[list[str]]:
    """Rows of the table of one size, as they are there."""
    fed, _ = federation(hidden, 0)
    net = Network(hidden)
    columns, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(columns / 16, dtype=torch.float32), torch.tensor(labels)
    rows = torch.randint(len(x), (STEPS, CLIENTS, BATCH), generator=torch.Generator().manual_seed(0))
    work = Work(net, x, y, rows)
    for name in names:
        algorithm, by_torch = CASES[name]
        ours, theirs = [], []
        for _ in range(REPEATS):
            ours.append(library(algorithm(), fed))
            theirs.append(by_hand(by_torch(work)))
        ratio = min(ours) / min(theirs)
        yield [f"{net.dim:,}", name, f"{1e3 * min(ours):.2f}", f"{1e3 * min(theirs):.2f}", f"{ratio:.2f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[20, 100, 1000])
    parser.add_argument("--algorithms", nargs="+", default=list(CASES), choices=list(CASES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("parameters", "algorithm", "ms a step", "ms by hand", "ratio"))
    for hidden in asked.hidden:
        for cells in compared(hidden, asked.algorithms):
            print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
