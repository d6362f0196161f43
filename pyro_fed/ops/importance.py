"""Importance weights: Pareto smoothing, effective number of draws, the normalising constant, resampling.

Source: Vehtari, Simpson, Gelman, Yao & Gabry (2024), *Pareto smoothed importance sampling*; Kitagawa (1996) for
systematic resampling.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.arviz_versions import psis
from pyro_fed.ops.backtrack import bisected

#: Fewest draws, or effective draws, whose weights can be smoothed.
MIN_SMOOTHED_DRAWS = 50
#: A tail of this shape is too long for weighted means (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7
#: Parts of a sample of weighted draws that are compared.
SAMPLE_PARTS = 8
#: If the effective number is at least this share of the draws, a large k does not matter: the tail has little weight.
TRUSTED_SHARE = 0.95
#: A log density so large is rounded to nats in float64: what is above it is no density, but what rounding has made of
#: parameters beyond all that a model can compute (1e303, of a Kalman filter whose variances are 1e260).
MAX_LOG_DENSITY = 1 / torch.finfo(torch.float64).eps


class Smoothed(NamedTuple):
    """Weights (S,) that sum to one, and the Pareto shape k of their tail; -inf if they are equal."""

    weights: Tensor
    pareto_k: float

    @property
    def effective(self) -> float:
        """Effective number of draws, 1 / Σ w²."""
        return float(1 / self.weights.square().sum())


def smoothed(log_weights: Tensor) -> Smoothed:
    """Pareto-smoothed weights from the logarithms (S,) of raw ones, which need not be normalised."""
    log_weights = log_weights.double()
    if float(log_weights.std()) < torch.finfo(torch.float64).eps ** 0.5:  # what is left is rounding
        return Smoothed(torch.full_like(log_weights, 1 / len(log_weights)), -math.inf)
    smooth, k = psis(log_weights.cpu().numpy())
    weights = torch.as_tensor(smooth, device=log_weights.device).exp()
    return Smoothed(weights / weights.sum(), k)


def flattened(log_weights: Tensor, least: float) -> Tensor:
    """Normalised weights (S,), raised to the largest power up to one that leaves them worth `least` draws."""
    log_weights = log_weights.double()
    possible = log_weights > -torch.inf

    def raised(power: float) -> Tensor:  # what is impossible is so to any power, to that of zero too
        return (log_weights * power).where(possible, -torch.inf).softmax(0)

    return raised(bisected(lambda power: float(1 / raised(power).square().sum()) >= least, 1.0)[0])


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean of the raw weights (S,), and its standard error.

    Weights with a long tail have a sample whose largest ones are missing more often than not, and whose variance is
    too small for the same reason. So two errors are added in squares: the sample's by the delta method, and what the
    generalised Pareto distribution of the largest weights holds beyond the one expected once in S draws,

        1/S (w' + σ'/(1 - k)),    w' its quantile at 1 - 1/S, σ' = σ + k (w' - u) there, u the threshold,

    which is infinite from k = 1 on, where these weights have no mean.
    """
    log_weights = log_weights.double()
    value = torch.logsumexp(log_weights, 0) - math.log(len(log_weights))
    relative = (log_weights - value).exp()
    sampled = float(relative.std() / len(relative) ** 0.5)
    return float(value), math.hypot(sampled, _unsampled_tail(relative, smoothed(log_weights).pareto_k))


def _unsampled_tail(weights: Tensor, k: float) -> float:
    """The part of the mean of weights (S,) beyond the largest expected of S draws, by a Pareto tail of shape k."""
    count = len(weights)
    tail = math.ceil(min(0.2 * count, 3 * count**0.5))  # Vehtari et al. (2024), Section 3.1
    if not math.isfinite(k) or count <= tail:
        return 0.0
    if k >= 1:
        return math.inf
    ordered = weights.sort().values
    threshold = ordered[-tail - 1]
    median = float((ordered[-tail:] - threshold).median())
    scale = median * k / math.expm1(k * math.log(2)) if k else median / math.log(2)
    excess = scale * math.expm1(k * math.log(tail)) / k if k else scale * math.log(tail)
    return (float(threshold) + excess + max(scale + k * excess, 0.0) / (1 - k)) / count


def weighted_errors(draws: Tensor, log_weights: Tensor) -> tuple[float, float]:
    """Errors of the weighted mean, in SDs, and SD, as a logarithm, of the worst parameter of draws (S, D).

    Parts of the draws, each smoothed by itself, give means and SDs whose spread over √`SAMPLE_PARTS` is the standard
    error, long tails included; where weights have not settled, those of a part are off from the whole's in one
    direction, and the whole is off from what it would be with more draws by about as much. Both are added: |bias| + 2
    errors.
    """
    parts = [weighted_moments(*part) for part in in_parts(draws.double(), log_weights)]
    mean, sd = weighted_moments(draws.double(), log_weights)
    means = (torch.stack([part[0] for part in parts]) - mean) / sd
    sds = (torch.stack([part[1] for part in parts]) / sd).log()
    errors = [float((x.mean(0).abs() + 2 * x.std(0) / SAMPLE_PARTS**0.5).max()) for x in (means, sds)]
    return errors[0], errors[1]


def in_parts(draws: Tensor, log_weights: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Draws (S, D) and log weights (S,) in `SAMPLE_PARTS` parts of one size, each spread over all of them."""
    end = len(draws) // SAMPLE_PARTS * SAMPLE_PARTS
    return [(draws[first:end:SAMPLE_PARTS], log_weights[first:end:SAMPLE_PARTS]) for first in range(SAMPLE_PARTS)]


def weighted_moments(draws: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Means and SDs (D,) of draws (S, D) with raw log weights (S,)."""
    weights = smoothed(log_weights).weights
    mean = weights @ draws
    return mean, (weights @ (draws - mean).square()).sqrt()


def systematic(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices (count,) of draws in a random order, each count × its weight times, rounded up or down at random."""
    first = torch.rand((), generator=generator, dtype=torch.float64)
    steps = (torch.arange(count, dtype=torch.float64) + first) / count
    chosen = torch.searchsorted(weights.double().cpu().cumsum(0), steps).clamp_max(len(weights) - 1)
    return chosen[torch.randperm(count, generator=generator)]
