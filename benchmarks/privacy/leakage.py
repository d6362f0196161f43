"""What one round's message of a client tells of its rows: reconstruction by who knows the model and the algorithm.

    python -m benchmarks.privacy.leakage [WORD ...]     # families whose names have one of the words

The attacker is the server, or a neighbour: it has the message, what the client received, the settings, the seed (and so
all noise that follows from it), and the number of rows. It looks for rows whose message, by the algorithm's own
`local_step`, is the one that it has seen: least squares in the message, each number in units of its SD over made-up
rows, by L-BFGS from several made-up starts, of which the best fit is taken. Rows are 6 standard normal covariates and
a label, of a logistic regression with an intercept; the covariates' distribution is known to the attacker, no label is.

Of what is shown to one who is asked or visited (chains, particles, proposals) the attacker is the server, who knows
where they were; of `P2PVI` a neighbour, who has the belief before and after the first round's update. Ten clients of
one row each under secure aggregation are one client of ten rows, which is why there is a column for these.

Printed is how much nearer to the true rows the found ones are than rows that are made up without any message,
1 - Σ|x̂ - x|² / Σ|x_made_up - x|², each after the best assignment to the true ones, mean over repetitions: 1 is every
row exactly, 0 what made-up rows give. What is found is no bound: another attack may find more. With differential
privacy (`pf.Private`, which FedAvg and FedSEP take) the attacker knows all other clients' messages and sees the noisy
sum. Where messages are added up by secure aggregation, what can be found of the sum of ten clients is what is found of
one client of ten times the rows.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import pyro_fed as pf
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.combination import clip
from pyro_fed.algorithm.states import State
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.base import Reply
from pyro_fed.runtime.executors.local import Sequential

COVARIATES, ROWS, OTHERS, REPEATS = 6, (1, 5, 10, 50), 50, 2
#: Starts of the search, and its iterations.
STARTS, STEPS = 2, 100
#: Made-up data sets that chance is measured by.
GUESSES = 20
#: Noise multipliers of one release, z.
NOISE = (1.0,)
#: Of a chain on sums, whose 400 rounds spend ε = 3 together, and its private rounds' step.
NOISE_OF_CHAIN = 27.8
FAMILIES: dict[str, Any] = {
    "Gaussian sites (FedEP)": pf.FedEP(start="prior", num_points=16),
    "beliefs (P2PVI)": pf.P2PVI(start="prior"),
    "changes of sites (FedSEP)": pf.infer.FedSEP(start="prior"),
    "points (FedAvg, 5 steps)": pf.FedAvg(chain_steps=5, step_size=0.1),
    "scores at one point (SummedLangevin)": pf.infer.SummedLangevin(step_size=0.01),
    "log-likelihoods at 200 draws (FedAIS)": pf.FedAIS(num_proposals=200, surrogates="laplace"),
    "chains (FSGLD)": pf.FSGLD(num_chains=2, local_steps=3, surrogates="laplace"),
    "particles (DSVGD)": pf.DSVGD(num_particles=10, local_steps=3, start="gaussian"),
}


def model(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(x.new_zeros(()), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)


def made_up(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, COVARIATES, generator=generator, dtype=torch.float64)
    w = torch.linspace(-1.0, 1.0, COVARIATES, dtype=torch.float64)
    y = (torch.rand(rows, generator=generator, dtype=torch.float64) < torch.sigmoid(x @ w)).double()
    return x, y


@dataclass
class Seen:
    """What the attacker has of the first client's first round in the last phase."""

    algorithm: Any
    problem: Any
    shared: State
    local: State
    noise: Any
    message: State


class Listening(Sequential):
    """Keeps what goes to the first client, and what comes back, of the first round of each phase."""

    seen: Seen

    def prepare(self) -> None:
        super().prepare()
        self.fresh = True

    def execute(self, work: Work) -> Reply:
        reply = super().execute(work)
        if self.fresh and 0 in work.clients:
            slot = work.clients.index(0)
            part = work.part(torch.tensor([slot]))
            local = {name: value[:1].clone() for name, value in self.local.items()}
            message = {name: value[slot : slot + 1] for name, value in reply.messages.items()}
            self.seen = Seen(self.algorithm, self.problem, dict(part.shared), local, self.noise(part), message)
            self.fresh = False
        return reply


def heard(algorithm: Any, rows: tuple[Tensor, Tensor], generator: torch.Generator) -> Seen:
    """A run with the client under attack and two others."""
    clients = [rows, made_up(OTHERS, generator), made_up(OTHERS, generator)]
    fed = pf.Federation.from_clients(model, clients, plate="data")
    executor = Listening()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pf.run(
            algorithm,
            fed,
            num_rounds=1,
            graph=pf.graph.ring(len(clients)) if isinstance(algorithm, OnGraph) else None,
            schedule=pf.schedule.RoundRobin() if algorithm.draws_are in ("particles", "chains") else None,
            executor=executor,
            compile="off",
            num_draws=2,
            audit=False,
            log_likelihood=False,
            progress=False,
        )
    return executor.seen


def message_of(seen: Seen, x: Tensor, y: Tensor) -> Tensor:
    """The message of a client with these rows, as one vector."""
    index = torch.arange(len(x))[None]
    data = ClientData((x, y), index, torch.tensor([len(x)]))
    message, *_ = seen.algorithm.local_step(seen.problem, seen.shared, seen.local, data, seen.noise)
    return flat(message)


def flat(message: State) -> Tensor:
    return torch.cat([value.double().flatten() for value in message.values() if value.is_floating_point()])


def attacked(seen: Seen, rows: int, target: Tensor, norm: float | None, generator: torch.Generator) -> Tensor:
    """The covariates that fit best, (rows, COVARIATES)."""

    def view(x: Tensor, y: Tensor) -> Tensor:
        found = message_of(seen, x, y)
        return found if norm is None else clip(found[None], norm)[0]

    with torch.no_grad():
        spread = torch.stack([view(*made_up(rows, generator)) for _ in range(10)]).std(0)
        scale = spread.clamp_min(1e-6 * spread.max())
    best, least = torch.zeros(rows, COVARIATES, dtype=torch.float64), float("inf")
    for _ in range(STARTS):
        x, y = made_up(rows, generator)
        logit = torch.zeros_like(y).requires_grad_()
        x.requires_grad_()
        optimiser = torch.optim.LBFGS([x, logit], max_iter=STEPS, line_search_fn="strong_wolfe", history_size=20)

        def loss(x: Tensor = x, logit: Tensor = logit, optimiser: Any = optimiser) -> Tensor:
            optimiser.zero_grad()
            fit = ((view(x, torch.sigmoid(logit)) - target) / scale).square().sum()
            prior = 1e-4 * (x.square().sum() + 0.1 * logit.square().sum())
            (fit + prior).backward()
            return fit + prior

        with torch.enable_grad():
            optimiser.step(loss)
        with torch.no_grad():
            value = float(((view(x, torch.sigmoid(logit)) - target) / scale).square().sum())
        if value < least:
            best, least = x.detach(), value
    return best


def distance(found: Tensor, true: Tensor) -> float:
    """Σ|x̂ - x|² after the best assignment."""
    cost = torch.cdist(found, true).square().numpy()
    return float(cost[linear_sum_assignment(cost)].sum())


def recovered(found: Tensor, true: Tensor, generator: torch.Generator) -> float:
    """How much nearer than made-up rows."""
    chance = np.mean([distance(made_up(len(true), generator)[0], true) for _ in range(GUESSES)])
    return max(0.0, 1.0 - distance(found, true) / float(chance))


def cell(algorithm: Any, rows: int, noise: float | None) -> float:
    shares = []
    for repeat in range(REPEATS):
        generator = torch.Generator().manual_seed(100 * rows + repeat)
        own = made_up(rows, generator)
        seen = heard(algorithm, own, generator)
        target, norm = flat(seen.message), None
        if noise is not None:
            norm = float(target.norm())  # the mildest clipping: none
            released = pf.Private(norm=norm, noise_multiplier=noise)({"message": target[None]})
            target = released["message"][0]
        with torch.no_grad():
            again = message_of(seen, *own)
        if noise is None and not torch.allclose(again, target, rtol=1e-6, atol=1e-9):
            raise RuntimeError(f"{algorithm}: the attacker's message of the true rows is not the client's")
        shares.append(recovered(attacked(seen, rows, target, norm, generator), own[0], generator))
    return float(np.mean(shares))


def main(families: dict[str, Any] = FAMILIES, sizes: tuple[int, ...] = ROWS) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    print(f"{'':48s}" + "".join(f"{f'{rows} rows':>10s}" for rows in sizes))
    table: dict[str, list[float]] = {}
    for name, algorithm in families.items():
        kinds: list[tuple[str, float | None]] = [(name, None)]
        if algorithm.additive and not algorithm.needs_all:
            chain = isinstance(algorithm, pf.infer.SummedLangevin)
            for multiplier in (NOISE_OF_CHAIN,) if chain else NOISE:
                epsilon = pf.Private(norm=1.0, noise_multiplier=multiplier).epsilon(1)
                kinds.append((f"  with pf.Private, ε = {epsilon:.2g} a round", multiplier))
        for label, noise in kinds:
            table[label if noise is None else f"{name}{label}"] = row = [cell(algorithm, n, noise) for n in sizes]
            print(f"{label:48s}" + "".join(f"{share:10.2f}" for share in row), flush=True)
    return table


if __name__ == "__main__":
    words = sys.argv[1:]
    main({name: one for name, one in FAMILIES.items() if not words or any(word in name for word in words)})
