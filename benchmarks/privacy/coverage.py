"""Coverage of 90 % intervals under differential privacy of clients, with its noise in the spread and without.

Linear regression with three weights drawn from their prior, 200 clients of 25 rows, messages clipped at norm 100 (few
are longer), δ = 1e-5, three rounds; the noise multiplier is the smallest that spends ε. `FedEP` is differentially
private partitioned variational inference (Heikkilä et al. 2023) with a trusted server: clients keep their clipped
sites, and three rounds' noise adds up in q. `FedSEP`'s clients keep none and take the noise of earlier rounds back. A
row: in how many of all intervals the truth lies, aware (as the run returns) and not (draws of the released q alone),
the SDs of both over the exact posterior's, and runs whose noise left no distribution (which say so).

    python -m benchmarks.privacy.coverage [TRIALS]
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
from pyro_fed.errors import PyroFedError
from pyro_fed.runtime.ending import finish

CLIENTS, ROWS, DIM, ROUNDS, NORM, DELTA = 200, 25, 3, 3, 100.0, 1e-5
EPSILONS = (1.0, 3.0, 10.0)
ALGORITHMS = {"FedEP": pf.FedEP(start="prior"), "FedSEP": pf.FedSEP(start="prior")}
INTERVAL = (0.05, 0.95)


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """Linear regression with known noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(DIM, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def multiplier(epsilon: float) -> float:
    """The smallest noise multiplier that spends ε in all rounds, by bisection."""
    low, high = 0.1, 100.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        spent = pf.Private(norm=NORM, noise_multiplier=middle, delta=DELTA).epsilon(ROUNDS)
        low, high = (low, middle) if spent < epsilon else (middle, high)
    return high


def trial(algorithm: Any, noise: float, seed: int) -> tuple[np.ndarray, ...] | None:
    """Whether each weight is in its interval, aware and not, and both SDs over the exact; None: no distribution."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    x = torch.randn(CLIENTS * ROWS, DIM, generator=generator, dtype=torch.float64)
    y = x @ truth + torch.randn(len(x), generator=generator, dtype=torch.float64)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS, seed=seed)
    private = pf.Private(norm=NORM, noise_multiplier=noise, delta=DELTA)
    plain = []

    def keep(algorithm: Any, context: Any, shared: Any, draws: torch.Tensor, num_draws: int) -> Any:
        plain.append(draws.flatten(0, 1).numpy())
        return with_noise(algorithm, context, shared, draws, num_draws)

    with_noise = finish.with_noise
    try:
        with mock.patch.object(finish, "with_noise", keep):
            idata = pf.run(algorithm, fed, combination=private, num_rounds=ROUNDS, progress=False, compile="off")
    except PyroFedError:
        return None
    exact = torch.linalg.inv(x.T @ x + torch.eye(DIM, dtype=x.dtype)).diagonal().sqrt().numpy()
    found = []
    for draws in (idata.posterior["w"].values.reshape(-1, DIM), plain[0]):
        low, high = np.quantile(draws, INTERVAL, axis=0)
        found += [(low < truth.numpy()) & (truth.numpy() < high), draws.std(0) / exact]
    return tuple(found)


def main() -> None:
    """The table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print("| algorithm | ε | noise multiplier | aware | not aware | SDs aware | not aware | no distribution |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, algorithm in ALGORITHMS.items():
        for epsilon in EPSILONS:
            noise = multiplier(epsilon)
            runs = [trial(algorithm, noise, seed) for seed in range(trials)]
            good = [run for run in runs if run is not None]
            aware, wide, plain, narrow = (np.stack(part) for part in zip(*good, strict=True))
            print(
                f"| `{name}` | {epsilon:g} | {noise:.2f} | {aware.mean():.0%} | {plain.mean():.0%} "
                f"| {np.median(wide):.2f} | {np.median(narrow):.2f} | {trials - len(good)} of {trials} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
