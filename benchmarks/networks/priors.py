"""What a prior's SD does to a network's predictions: its own posterior on the pooled rows, beside federated answers.

    python -m benchmarks.networks.priors                                          # wine, 20 units, ten splits
    python -m benchmarks.networks.priors --data digits --hidden 1000 --sd 1 --seeds 3 --algorithms FedAvg FedEP

Networks, data, clients and rows to test on of `benchmarks.networks`, with N(0, sd²) on all weights. The posterior is
sampled by Hamiltonian Monte Carlo in units of that SD, a step of which turns weights and momenta as the prior alone
would, exactly, between two kicks by the likelihood (Shahbaba et al. 2014): of 75,010 parameters most are nearly the
prior's. It starts at a point by Adam. The first half of its draws adapts the step and is not kept. Accuracy, log
density and ECE on the rows to test on: mean ± standard error over seeds. A draw of 75,010 parameters takes a second.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import ALGORITHMS, DATA, federation, logits, network, probabilities, quiet
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.results.to_arviz import unconstrained_draws

POSTERIOR = "HMC, pooled"
#: How long a trajectory is: a quarter turn, π/2, forgets where it began; 0.5 is as far as one goes at a second a draw.
TIME = 0.5
#: The first step, and the acceptance that the first half of the draws adapts it to, by so much of its log a draw.
FIRST_STEP, ACCEPTED, ADAPTED = 0.01, 0.8, 0.2
#: Of the start's point, in units of the prior's SD.
CLIMB_STEPS, CLIMB_RATE = 200, 0.02


def posterior(x: Tensor, y: Tensor, hidden: int, classes: int, sd: float, draws: int, seed: int) -> Tensor:
    """The second half of so many draws, weights in their own units."""

    def value(z: Tensor) -> tuple[float, Tensor]:
        z = z.detach().requires_grad_()
        found = -cross_entropy(logits(sd * z, x, hidden, classes), y, reduction="sum")
        return float(found.detach()), torch.autograd.grad(found, z)[0]

    def energy(z: Tensor, momentum: Tensor, log_lik: float) -> float:
        return float(z.double().square().sum() + momentum.double().square().sum()) / 2 - log_lik

    generator = torch.Generator().manual_seed(seed)
    dim = (x.shape[1] + 1) * hidden + (hidden + 1) * classes
    z, step, kept = climbed(value, 0.3 * torch.randn(dim, generator=generator)), FIRST_STEP, []
    here = value(z)
    for number in range(draws):
        momentum = torch.randn(dim, generator=generator)
        length = TIME * (0.8 + 0.4 * float(torch.rand((), generator=generator)))  # no two trajectories alike
        there, at, now = momentum, z, here
        for _ in range(math.ceil(length / step)):
            there = there + step / 2 * now[1]
            at, there = math.cos(step) * at + math.sin(step) * there, math.cos(step) * there - math.sin(step) * at
            now = value(at)
            there = there + step / 2 * now[1]
        gained = energy(z, momentum, here[0]) - energy(at, there, now[0])
        chance = math.exp(min(0.0, gained)) if math.isfinite(gained) else 0.0
        if float(torch.rand((), generator=generator)) < chance:
            z, here = at, now
        if number < draws // 2:
            step *= math.exp(ADAPTED * (chance - ACCEPTED))
        else:
            kept.append(sd * z)
    return torch.stack(kept)


def climbed(value: Callable[[Tensor], tuple[float, Tensor]], z: Tensor) -> Tensor:
    """A point near the mode, by Adam."""
    z = z.requires_grad_()
    optimiser = torch.optim.Adam([z], lr=CLIMB_RATE)
    for _ in range(CLIMB_STEPS):
        z.grad = z.detach() - value(z)[1]
        optimiser.step()
    return z.detach()


def measured(name: str, data: str, hidden: int, sd: float, seed: int, draws: int) -> list[float]:
    """Accuracy, log density and ECE of one run."""
    classes = len(set(DATA[data](return_X_y=True)[1].tolist()))
    fed, test = federation(hidden, seed, data, network(hidden, classes, sd))
    if name == POSTERIOR:
        x, y = fed.problem.rows
        found = posterior(x, y.long(), hidden, classes, sd, draws, seed)
    else:
        make, options = ALGORITHMS[name]
        with quiet():
            idata = pf.run(make(), fed, seed=seed, progress=False, audit=False, log_likelihood=False, **options)
        found = unconstrained_draws(idata, fed.problem)
    probs = probabilities(fed, found, test)
    own = probs.gather(1, test[1].unsqueeze(1)).log().mean()
    accuracy = (probs.argmax(-1) == test[1]).float().mean()
    return [float(accuracy), float(own), float(calibration_errors(probs, test[1])["ece"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="wine")
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--sd", type=float, nargs="+", default=[1.0, 0.5, 0.3])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=200)
    names = [POSTERIOR, *ALGORITHMS]
    parser.add_argument("--algorithms", nargs="+", choices=names, default=["FedAvg", "FedEP", "P2PVI", POSTERIOR])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("prior's SD", "algorithm", "accuracy", "log density", "ECE", "seeds"))
    for sd in given.sd:
        for name in given.algorithms:
            seeds = range(given.seeds)
            found = [measured(name, given.data, given.hidden, sd, seed, given.draws) for seed in seeds]
            shown = [spread(list(values)) for values in zip(*found, strict=True)]
            print(row(f"{sd:g}", f"`{name}`", *shown, given.seeds), flush=True)


if __name__ == "__main__":
    main()
