"""The federation that is lied to: ten clients, logistic regression with three weights, and its exact moments."""

from __future__ import annotations

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

CLIENTS, DIM, ROWS = 10, 3, 40
#: Gauss-Hermite nodes along each axis about the mode, and Newton steps to it.
NODES, STEPS = 24, 50
#: Means and SDs.
Moments = tuple[np.ndarray, np.ndarray]
#: Each client's.
Rows = list[tuple[Tensor, Tensor]]


def model(x: Tensor, y: Tensor) -> None:
    """Logistic regression with as many weights as there are covariates."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(others: tuple[int, ...] = (), sizes: list[int] | None = None) -> Rows:
    """Each client's rows, 40 or of the `sizes`; those of `others` are of another population."""
    sizes = [ROWS] * CLIENTS if sizes is None else sizes
    generator, total = torch.Generator().manual_seed(1), sum(sizes)
    x = torch.randn(total, DIM, generator=generator, dtype=torch.float64)
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    chance = torch.rand(total, generator=generator, dtype=torch.float64)
    parts = []
    for k, size in enumerate(sizes):
        at = slice(sum(sizes[:k]), sum(sizes[:k]) + size)
        weights = -2 * truth if k in others else truth
        parts.append((x[at], (chance[at] < torch.sigmoid(x[at] @ weights)).double()))
    return parts


def exact_moments(parts: Rows) -> Moments:
    """Means and SDs of the posterior of some clients' rows."""
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    return by_quadrature(x, y)


def by_quadrature(x: Tensor, y: Tensor) -> Moments:
    """Means and SDs of the weights under standard normal priors, by Gauss-Hermite nodes about the mode."""
    sign, mode = 2 * y - 1, torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(STEPS):
        chance = (x @ mode).sigmoid()
        precision = (x.T * (chance * (1 - chance))) @ x + torch.eye(len(mode), dtype=torch.float64)
        step = torch.linalg.solve(precision, x.T @ (y - chance) - mode)
        mode = mode + step / step.norm().clamp_min(1.0)
    white, log_weight = nodes(len(mode))
    z = mode + torch.linalg.solve_triangular(torch.linalg.cholesky(precision).mT, white.T, upper=True).T
    density = logsigmoid(sign * (z @ x.T)).sum(1) - z.square().sum(1) / 2
    weights = (density + white.square().sum(1) / 2 + log_weight).softmax(0)
    mean = weights @ z
    return mean.numpy(), (weights @ (z - mean).square()).sqrt().numpy()


@functools.cache
def nodes(dim: int) -> tuple[Tensor, Tensor]:
    """Nodes of a standard normal distribution (S, D), and the logarithms of their weights, up to a constant."""
    point, weight = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(NODES))
    every = torch.cartesian_prod(*[point] * dim)
    return every, torch.cartesian_prod(*[weight.log()] * dim).sum(1)
