"""Why FedEP with the optimisers of Table 7 of Guo et al. leaves the data.

    python -m benchmarks.papers.fedep_momentum [--rounds 36]

The server's optimiser turns the mean of the round's changes into a step of q, each client's own turns its change into a
step of its site (Algorithm 3). With momentum m and rate δ a change is worth δ / (1 - m) of itself to both in the end.
The server gives it over the next 1 / (1 - m) rounds, a client over as many rounds in which it takes part: with 10 of
100 clients a round that is ten times as long. Meanwhile q is not p_0 Π t_k, and what a client has said, q has and its
site has not, so that it is said again. For a parameter whose curvature falls from t to F in every site, in rounds of a
share of the clients (a precision does not depend on anything else):

    Δ_k = F - t_k,    V ← m V + mean_C Δ_k,  Λ ← Λ + δ V,    v_k ← m v_k + Δ_k / |C|,  t_k ← t_k + δ v_k  (k in C)

Printed: (Λ - F) / (t - F) of that recursion, which falls below zero, and beside it the precisions of q in the run of
`fedep_inferences` with (L), in which sites begin at α_cov = 0.05 a row (the authors' code) and the Fisher information
of pixels that are hardly ever on is far smaller: the smallest and the median over the 650 weights, relative to the
first round's. With 500 times the Fisher information, the authors' commands, F is above t and Λ overshoots upwards.

If all K clients take part in each round, the recursion is e ← e + δ v, v ← m v - e / K for what is left, e, of t - F.
Its roots have the modulus √m and the angle arccos((1 + m - δ/K) / (2 √m)), so that e swings to the other side, by
exp(-π |log √m| / angle): 0.67 with three clients, 0.48 with ten, 0.04 with a hundred. Λ stays above zero if the prior's
precision and all rows' F are more than that share of what the sites are to lose. Printed beside it: the smallest
precision of a run with (L) on the library's `logistic_regression`, ten clients, where F is all but zero.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.papers.fedep_digits import (
    CLIENTS,
    PER_ROUND,
    Rows,
    averaged,
    federation,
    first_fold,
    run_rounds,
    weights_of,
)
from benchmarks.papers.fedep_inferences import PRIOR_SD, algorithm_of
from pyro_fed.recipes.library import load_model

#: Table 7: the learning rate of server and clients, and their momentum.
RATE, MOMENTUM = 0.5, 0.9
BURN_IN, DRAWS, SHOWN = 60, 200, (1, 5, 10, 15, 20, 25, 30, 32, 34, 36)


def recursion(
    rounds: int, momentum: float, times: int = 20, clients: int = CLIENTS, per_round: int = PER_ROUND
) -> np.ndarray:
    """What is left of a precision of one, all of which is to go, by round; the mean over choices of clients."""
    left = []
    for seed in range(times):
        rng = np.random.default_rng(seed)
        sites, velocities = np.ones(clients), np.zeros(clients)
        q, velocity, path = float(clients), 0.0, []
        for _ in range(rounds):
            chosen = rng.choice(clients, per_round, replace=False)
            change = -sites[chosen]
            velocity = momentum * velocity + change.mean()
            q += RATE * velocity
            velocities[chosen] = momentum * velocities[chosen] + change / per_round
            sites[chosen] += RATE * velocities[chosen]
            path.append(q / clients)
        left.append(path)
    return np.mean(left, 0)


def swing(clients: int, momentum: float) -> float:
    """How far a precision of one, all of which is to go, swings below zero if all clients take part in each round."""
    angle = np.arccos((1 + momentum - RATE / clients) / (2 * momentum**0.5))
    return float(np.exp(np.pi * np.log(momentum**0.5) / angle))


def smallest_precisions(rounds: int, clients: int) -> np.ndarray:
    """The smallest precision of q by round, of (L) on the library's logistic regression with a fixed prior."""
    (x, y), _ = load_model("logistic_regression").load_data()

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), PRIOR_SD).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    fed, found = pf.Federation(model, (x, y), plate="data", num_clients=clients), []

    def evaluate(idata: Any) -> dict[str, float]:
        w = idata["posterior"]["w"].values[0].astype(float)
        found.append(float((1 / w.var(0)).min()))
        return {}

    options: dict[str, Any] = {"schedule": None, "num_draws": 10 * DRAWS, "evaluate": evaluate}
    run_rounds(algorithm_of("fedep_l", BURN_IN // 2), fed, rounds, **options)
    return np.array(found)


def precisions(rounds: int, momentum: bool, rows: Rows, test: Rows) -> np.ndarray:
    """Smallest and median precision of the weights, and accuracy, by round, (rounds, 3)."""
    algorithm = algorithm_of("fedep_l", BURN_IN)
    if not momentum:
        still = pf.infer.optim.SGD(momentum=0.0)
        optimisers = dataclasses.replace(algorithm.optimisers, server=still, client=still)
        algorithm = dataclasses.replace(algorithm, optimisers=optimisers)
    found: list[tuple[float, float, float]] = []

    def evaluate(idata: Any) -> dict[str, float]:
        precision = weights_of(idata).var(0).reciprocal()
        right = averaged(weights_of(idata), test[0]).argmax(-1) == test[1]
        found.append((float(precision.min()), float(precision.median()), float(right.double().mean())))
        return {}

    run_rounds(algorithm, federation(rows, PRIOR_SD), rounds, num_draws=DRAWS, evaluate=evaluate)
    return np.array(found)


def main() -> None:
    """Print the recursion and the run, with the published momentum and without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=36)
    options = parser.parse_args()
    rows, test = first_fold()
    every, run = recursion(10, MOMENTUM, 1, 10, 10), smallest_precisions(10, 10)
    swings = ", ".join(f"{clients}: {swing(clients, MOMENTUM):.2f}" for clients in (3, 10, 100))
    print(f"all clients take part, swing to the other side, by their number: {swings}")
    print("ten clients, what is left by round: " + " ".join(f"{one:.2f}" for one in every))
    print("(L), the smallest precision:        " + " ".join(f"{one:.2g}" for one in run), flush=True)
    print(f"momentum 0.5: the recursion's least in 400 rounds {recursion(400, 0.5).min():.2f}")
    for momentum in (MOMENTUM, 0.0):
        toy = recursion(400, momentum)
        print(f"\nmomentum {momentum}: the recursion's least {toy.min():.2f} in round {toy.argmin() + 1}")
        print(f"{'round':>5}{'recursion':>11}{'smallest':>10}{'median':>8}{'accuracy':>10}", flush=True)
        run = precisions(options.rounds, momentum > 0, rows, test)
        for shown in (one for one in SHOWN if one <= options.rounds):
            (least, median, accuracy), (first, middle, _) = run[shown - 1], run[0]
            print(
                f"{shown:5}{toy[shown - 1]:11.2f}{least / first:10.2g}{median / middle:8.2f}{accuracy:10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
