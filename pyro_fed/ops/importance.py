"""Importance weights: Pareto smoothing, how many draws they are worth, the normalising constant, resampling.

Source: Vehtari, Simpson, Gelman, Yao & Gabry (2024), *Pareto smoothed importance sampling*; Kitagawa (1996) for
systematic resampling.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: A tail of this shape is too long for weighted means (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7
#: SD of log weights that is rounding: they are equal.
EQUAL = 1e-6


class Smoothed(NamedTuple):
    """Weights (S,) that sum to one, and the Pareto shape k of their tail; -inf where they are equal."""

    weights: Tensor
    pareto_k: float

    @property
    def effective(self) -> float:
        """Effective number of draws, 1 / Σ w²."""
        return float(1 / self.weights.square().sum())


def smoothed(log_weights: Tensor) -> Smoothed:
    """Pareto-smoothed weights from the logarithms (S,) of raw ones, which need not be normalised."""
    import arviz as az  # takes seconds, and clients can do without

    log_weights = log_weights.double()
    if float(log_weights.std()) < EQUAL:
        return Smoothed(torch.full_like(log_weights, 1 / len(log_weights)), -math.inf)
    psislw: Any = az.psislw  # without types
    smooth, k = psislw(log_weights.cpu().numpy())
    weights = torch.as_tensor(smooth, device=log_weights.device).exp()
    return Smoothed(weights / weights.sum(), float(k))


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean of the raw weights (S,), and its standard error by the delta method."""
    log_weights = log_weights.double()
    value = torch.logsumexp(log_weights, 0) - math.log(len(log_weights))
    relative = (log_weights - value).exp()
    return float(value), float(relative.std() / len(relative) ** 0.5)


def systematic(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices (count,) of draws chosen in proportion to weights (S,) that sum to one, in a random order.

    Each is chosen count × its weight times, rounded up or down at random.
    """
    first = torch.rand((), generator=generator, dtype=torch.float64)
    steps = (torch.arange(count, dtype=torch.float64) + first) / count
    chosen = torch.searchsorted(weights.double().cpu().cumsum(0), steps).clamp_max(len(weights) - 1)
    return chosen[torch.randperm(count, generator=generator)]
