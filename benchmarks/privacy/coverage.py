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
    python -m benchmarks.privacy.coverage [TRIALS] --figure docs/privacy.png

The figure has both models at more ε: above how far the released means are from the exact posterior's, and how wide SDs
are, in exact SDs; below in how many of all intervals the truth lies, aware and not.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from pyro_fed.errors import PyroFedError
from pyro_fed.runtime import finish
from pyro_fed.runtime.privacy_noise import with_noise

CLIENTS, ROWS, DIM, DELTA = 200, 25, 3, 1e-5
EPSILONS, FIGURE_EPSILONS = (1.0, 3.0, 10.0), (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
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


class Cell(NamedTuple):
    """At one ε: parts of the intervals that hold the truth, with the noise and without; medians of SDs and errors."""

    aware: float
    plain: float
    wide: float
    error: float


def cell(model: str, name: str, epsilon: float, trials: int) -> Cell:
    """Runs whose noise left no distribution say so, and are not in it."""
    noise = multiplier(epsilon, MODELS[model][2])
    runs = [run for seed in range(trials) if (run := trial(model, ALGORITHMS[name], noise, seed)) is not None]
    if not runs:
        return Cell(*[float("nan")] * 4)
    aware, wide, plain, _, error = (np.stack(part) for part in zip(*runs, strict=True))
    return Cell(float(aware.mean()), float(plain.mean()), float(np.median(wide)), float(np.median(error)))


def draw_figure(trials: int, path: str) -> None:
    """Measure, print and draw."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(8.0, 5.6), sharex=True, sharey="row", layout="constrained")
    for column, model in enumerate(MODELS):
        above, below = axes[:, column]
        for name, colour in {"FedEP": "C0", "FedSEP": "C1"}.items():
            found = [cell(model, name, epsilon, trials) for epsilon in FIGURE_EPSILONS]
            for epsilon, one in zip(FIGURE_EPSILONS, found, strict=True):
                print(model, name, epsilon, *(f"{value:.2f}" for value in one), flush=True)
            lines = (
                (above, [one.error for one in found], "-o", "error of the mean"),
                (above, [one.wide for one in found], ":", "SD"),
                (below, [one.aware for one in found], "-o", "noise in the SDs"),
                (below, [one.plain for one in found], "--", "without it"),
            )
            for axis, values, style, what in lines:
                axis.plot(FIGURE_EPSILONS, values, style, color=colour, label=f"{name}, {what}")
        above.axhline(1.0, color="0.6", lw=0.8)
        below.axhline(0.9, color="0.6", lw=0.8)
        above.set(title=f"{model} regression", yscale="log", xscale="log")
        below.set(xlabel="ε (δ = 1e-5, a client protected)", ylim=(0, 1.05), xticks=FIGURE_EPSILONS)
        below.set_xticklabels([f"{epsilon:g}" for epsilon in FIGURE_EPSILONS])
    axes[0, 0].set_ylabel("exact posterior's SDs")
    axes[1, 0].set_ylabel("90 % intervals that hold the truth")
    axes[0, 1].legend(fontsize=8)
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """The tables, or the figure."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trials", type=int, nargs="?", default=40)
    parser.add_argument("model", choices=list(MODELS), nargs="?", default="linear")
    parser.add_argument("what", choices=["sites", "chains"], nargs="?", default="sites")
    parser.add_argument("--figure", metavar="FILE")
    given = parser.parse_args()
    trials, model = given.trials, given.model
    if given.figure:
        return draw_figure(trials, given.figure)
    if given.what == "chains":
        return chains(model, trials)
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
