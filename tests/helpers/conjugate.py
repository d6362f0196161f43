"""A conjugate problem with its exact posterior, and runs whose beliefs are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from pyro_fed.infer.sites.gaussian_sites import gaussian

PRIOR_SD, NOISE_SD = 1.5, 0.7
QUIET = {"num_draws": 2, "progress": False, "log_likelihood": False, "audit": False}


def model(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), PRIOR_SD).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE_SD), obs=y)


def data(rows: int = 60, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    x = x.cumsum(1)  # correlated columns
    return x, x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + NOISE_SD * torch.randn(
        rows, generator=generator, dtype=torch.float64
    )


def exact(x: Tensor, y: Tensor, power: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and covariance, each row's likelihood to a power."""
    weighted = x * torch.as_tensor(power, dtype=x.dtype).reshape(-1, 1)
    precision = weighted.T @ x / NOISE_SD**2 + torch.eye(x.shape[1], dtype=x.dtype) / PRIOR_SD**2
    covariance = torch.linalg.inv(precision)
    return covariance @ (weighted.T @ y) / NOISE_SD**2, covariance


def federation(num_clients: int = 4, rows: int = 60) -> pf.Federation:
    """Sorted by the first covariate, so that agents see different data."""
    x, y = data(rows)
    part = pf.partition.SortedBy(x[:, 0])
    return pf.Federation(model, (x, y), plate="data", num_clients=num_clients, partition=part)


@dataclass(frozen=True, kw_only=True)
class KeptVI(pf.P2PVI):
    """Keeps its final beliefs."""

    kept: list[Any] = field(default_factory=list, compare=False)

    def sample(self, shared: Any, num_draws: int, generator: torch.Generator) -> Tensor:
        self.kept.append(gaussian(shared))
        return super().sample(shared, num_draws, generator)


@dataclass(frozen=True, kw_only=True)
class KeptEP(pf.infer.P2PEP):
    """Keeps its final beliefs."""

    kept: list[Any] = field(default_factory=list, compare=False)

    def sample(self, shared: Any, num_draws: int, generator: torch.Generator) -> Tensor:
        self.kept.append(gaussian(shared))
        return super().sample(shared, num_draws, generator)


def beliefs(algorithm: Any, fed: pf.Federation, graph: Any, **options: Any) -> tuple[Tensor, Tensor, Any]:
    """Means (A, D), spreads of the agents' final beliefs, and the InferenceData."""
    idata = pf.run(algorithm, fed, graph=graph, **{**QUIET, **options})
    return *algorithm.kept[-1].moments(), idata
