"""Importance weights: Pareto smoothing, effective sample size, the normalising constant, resampling.

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

#: Smallest number of draws, or of effective draws, whose weights can be smoothed.
MIN_SMOOTHED_DRAWS = 50
#: Largest shape k of a tail for which weighted means can be trusted (Vehtari et al. 2024).
LARGEST_PARETO_K = 0.7
#: Number of parts of a weighted sample that are compared.
SAMPLE_PARTS = 8
#: Relative effective sample size from which on a large k does not matter, since the tail has little weight.
TRUSTED_SHARE = 0.95
#: Largest credible log density: larger ones are rounded to more than a nat in float64. They come from parameters for
#: which rounding has ruined the model (1e303, of a Kalman filter whose variances are 1e260).
MAX_LOG_DENSITY = 1 / torch.finfo(torch.float64).eps


class Smoothed(NamedTuple):
    """Weights (S,) that sum to one, and the Pareto shape k of their tail; -inf if they are equal."""

    weights: Tensor
    pareto_k: float

    @property
    def effective(self) -> float:
        """Effective sample size, 1 / Σ w²."""
        return float(1 / self.weights.square().sum())


def smoothed(log_weights: Tensor) -> Smoothed:
    """Pareto-smoothed weights from the logarithms (S,) of raw ones, which need not be normalised."""
    log_weights = log_weights.double()
    if float(log_weights.std()) < torch.finfo(torch.float64).eps ** 0.5:  # differences are rounding errors
        return Smoothed(torch.full_like(log_weights, 1 / len(log_weights)), -math.inf)
    smooth, k = psis(log_weights.cpu().numpy())
    weights = torch.as_tensor(smooth, device=log_weights.device).exp()
    return Smoothed(weights / weights.sum(), k)


def flattened(log_weights: Tensor, least: float) -> Tensor:
    """Normalised weights (S,), raised to the largest power up to one with an effective sample size of `least`."""
    log_weights = log_weights.double()
    possible = log_weights > -torch.inf

    def raised(power: float) -> Tensor:  # impossible draws stay impossible, also with power zero
        return (log_weights * power).where(possible, -torch.inf).softmax(0)

    return raised(bisected(lambda power: float(1 / raised(power).square().sum()) >= least, 1.0)[0])


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean of the raw weights (S,), and its standard error.

    If weights have a long tail, a sample tends to miss the largest ones, and its variance is too small. So the squares
    of two errors are added: that of the sample, by the delta method, and the part of the mean beyond the largest weight
    expected in S draws, by the generalised Pareto distribution of the largest weights,

        1/S (w' + σ'/(1 - k)),    w' its quantile at 1 - 1/S, σ' = σ + k (w' - u) there, u the threshold

    It is infinite for k >= 1, where the weights have no mean.
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

    The means and SDs of parts of the draws, each smoothed by itself, have a spread that divided by √`SAMPLE_PARTS` is
    the standard error, long tails included. If weights have not converged, all parts differ from the whole in one
    direction, and the whole differs by about as much from a larger sample (the bias). The result is |bias| + 2 standard
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
    """Indices (count,) of draws in random order; each occurs count × weight times, rounded up or down at random."""
    first = torch.rand((), generator=generator, dtype=torch.float64)
    steps = (torch.arange(count, dtype=torch.float64) + first) / count
    chosen = torch.searchsorted(weights.double().cpu().cumsum(0), steps).clamp_max(len(weights) - 1)
    return chosen[torch.randperm(count, generator=generator)]
