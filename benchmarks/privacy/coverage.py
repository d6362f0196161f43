"""Coverage of 90 % intervals under differential privacy of clients, with its noise in the spread and without.

Linear or logistic regression with three weights drawn from their prior, 200 clients of 25 rows, δ = 1e-5, messages
clipped at norm 100 or 20 (few are longer), three or six rounds (`FedEP` begins logistic regression by short steps); the
noise multiplier is the smallest that spends ε. `FedEP` is differentially private partitioned variational inference
(Heikkilä et al. 2023) with a trusted server: clients keep their clipped sites, and all rounds' noise adds up in q.
`FedSEP`'s clients keep none and take the noise of earlier rounds back. `SummedLangevin` is one chain of 400 rounds, of
which the noise is the chain's own, by client and by row; its temperature is what makes it `LENGTH` relaxation times
long, from the guessed precision of `CHAINS`, and not from what it gave. A row: in how many of all intervals the truth
lies, aware (as the run returns) and not (draws of the released q alone),
the SDs of both over the exact posterior's (of logistic regression Laplace's, by Newton's method on all rows), how far
the released means are from that posterior's in its SDs, and runs whose noise left no distribution (which say so).

    python -m benchmarks.privacy.coverage [TRIALS] [linear|logistic] [sites|chains]
"""

from __future__ import annotations

import sys
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from pyro_fed.errors import PyroFedError
from pyro_fed.runtime.ending import finish
from pyro_fed.runtime.ending.privacy_noise import with_noise

CLIENTS, ROWS, DIM, DELTA = 200, 25, 3, 1e-5
EPSILONS = (1.0, 3.0, 10.0)
ALGORITHMS = {"FedEP": pf.FedEP(start="prior"), "FedSEP": pf.infer.FedSEP(start="prior")}
INTERVAL = (0.05, 0.95)


def linear(x: torch.Tensor, y: torch.Tensor) -> None:
    """Linear regression with known noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(DIM, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def logistic(x: torch.Tensor, y: torch.Tensor) -> None:
    """Logistic regression."""
    w = pyro.sample("w", dist.Normal(torch.zeros(DIM, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def outcomes(model: Any, score: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows of a model at linear predictors (n,)."""
    if model is linear:
        return score + torch.randn(len(score), generator=generator, dtype=score.dtype)
    return torch.bernoulli(score.sigmoid(), generator=generator)


def posterior(model: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and SDs; of logistic regression the mode and Laplace's SDs."""
    mean, prior = torch.zeros(DIM, dtype=x.dtype), torch.eye(DIM, dtype=x.dtype)
    for _ in range(1 if model is linear else 20):
        fitted = x @ mean if model is linear else (x @ mean).sigmoid()
        weight = torch.ones_like(y) if model is linear else fitted * (1 - fitted)
        covariance = torch.linalg.inv(prior + x.T @ (weight[:, None] * x))
        mean = mean + covariance @ (x.T @ (y - fitted) - mean)
    return mean.numpy(), covariance.diagonal().sqrt().numpy()


#: Models, the longest that a client's message may be, and rounds.
MODELS = {"linear": (linear, 100.0, 3), "logistic": (logistic, 20.0, 6)}
#: Of chains, by model and unit: the longest score, and a guess of the posterior's precision.
CHAINS = {
    ("linear", "client"): (15.0, CLIENTS * ROWS),
    ("linear", "row"): (4.0, CLIENTS * ROWS),
    ("logistic", "client"): (6.0, 0.125 * CLIENTS * ROWS),
    ("logistic", "row"): (2.0, 0.125 * CLIENTS * ROWS),
}
#: Rounds of a chain, relaxation times that it is to have, and its largest hλ/α.
CHAIN_ROUNDS, LENGTH, LARGEST = 400, 50, 0.5


def multiplier(epsilon: float, rounds: int) -> float:
    """The smallest noise multiplier that spends ε in all rounds, by bisection."""
    low, high = 0.1, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        spent = pf.Private(norm=1.0, noise_multiplier=middle, delta=DELTA).epsilon(rounds)
        low, high = (low, middle) if spent < epsilon else (middle, high)
    return high


def trial(name: str, algorithm: Any, noise: float, seed: int) -> tuple[np.ndarray, ...] | None:
    """Whether each weight is in its interval, aware and not, SDs and error; None if noise left no distribution."""
    model, norm, rounds = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    y = outcomes(model, x @ truth, generator)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS, seed=seed)
    private = pf.Private(norm=norm, noise_multiplier=noise, delta=DELTA)
    plain = []

    def keep(algorithm: Any, context: Any, shared: Any, draws: torch.Tensor, num_draws: int) -> Any:
        plain.append(draws.flatten(0, 1).numpy())
        return with_noise(algorithm, context, shared, draws, num_draws)

    try:
        with mock.patch.object(finish, "with_noise", keep):
            idata = pf.run(
                algorithm, fed, combination=private, num_rounds=rounds, seed=seed, progress=False, compile="off"
            )
    except PyroFedError:
        return None
    mean, exact = posterior(model, x, y)
    found = []
    for draws in (idata["posterior"]["w"].values.reshape(-1, DIM), plain[0]):
        low, high = np.quantile(draws, INTERVAL, axis=0)
        found += [(low < truth.numpy()) & (truth.numpy() < high), draws.std(0) / exact]
    return *found, np.abs(plain[0].mean(0) - mean) / exact


def chain_trial(name: str, unit: str, noise: float, seed: int) -> tuple[np.ndarray, ...]:
    """The same of a chain: whether each weight is in its interval, its SDs and errors, and its temperature."""
    model, generator = MODELS[name][0], torch.Generator().manual_seed(seed)
    norm, precision = CHAINS[name, unit]
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    y = outcomes(model, x @ truth, generator)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS, seed=seed)
    whole = 4 * precision * CHAIN_ROUNDS / (2 * noise**2) / norm**2  # relaxation times at temperature 1
    temperature = max(1.0, LENGTH / whole)
    longest = 4 * temperature**2 / (norm * noise) ** 2
    step = LARGEST * temperature / precision
    algorithm = pf.infer.SummedLangevin(
        temperature=temperature,
        step_size=step if step < longest else None,
        row_norm=norm if unit == "row" else None,
    )
    private: Any = pf.Private(norm=norm, noise_multiplier=noise, delta=DELTA, unit=unit)  # type: ignore[arg-type]
    idata = pf.run(
        algorithm, fed, combination=private, num_rounds=CHAIN_ROUNDS, seed=seed, progress=False, compile="trace"
    )
    draws = idata["posterior"]["w"].values.reshape(-1, DIM)
    mean, exact = posterior(model, x, y)
    low, high = np.quantile(draws, INTERVAL, axis=0)
    inside = (low < truth.numpy()) & (truth.numpy() < high)
    return inside, draws.std(0) / exact, np.abs(draws.mean(0) - mean) / exact, np.array(temperature)


def chains(model: str, trials: int) -> None:
    """The table of chains."""
    print(heading("protected", "ε", "noise multiplier", "temperature", "held", "SDs", "error"))
    for unit in ("client", "row"):
        for epsilon in EPSILONS:
            noise = multiplier(epsilon, CHAIN_ROUNDS)
            runs = [chain_trial(model, unit, noise, seed) for seed in range(trials)]
            held, wide, error, temperature = (np.stack(part) for part in zip(*runs, strict=True))
            figures = (f"{held.mean():.0%}", f"{np.median(wide):.2f}", f"{np.median(error):.2f}")
            print(row(unit, f"{epsilon:g}", f"{noise:.1f}", f"{temperature[0]:.2g}", *figures), flush=True)


def main() -> None:
    """The tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    model = sys.argv[2] if len(sys.argv) > 2 else "linear"
    what = sys.argv[3] if len(sys.argv) > 3 else "sites"
    if what == "chains":
        chains(model, trials)
        return
    titles = ("aware", "not aware", "SDs aware", "not aware", "error", "no distribution")
    print(heading("algorithm", "ε", "noise multiplier", *titles))
    for name, algorithm in ALGORITHMS.items():
        for epsilon in EPSILONS:
            noise = multiplier(epsilon, MODELS[model][2])
            runs = [trial(model, algorithm, noise, seed) for seed in range(trials)]
            good = [run for run in runs if run is not None]
            aware, wide, plain, narrow, error = (np.stack(part) for part in zip(*good, strict=True))
            shares = (f"{held.mean():.0%}" for held in (aware, plain))
            figures = (f"{np.median(part):.2f}" for part in (wide, narrow, error))
            lost = f"{trials - len(good)} of {trials}"
            print(row(f"`{name}`", f"{epsilon:g}", f"{noise:.2f}", *shares, *figures, lost), flush=True)


if __name__ == "__main__":
    main()
