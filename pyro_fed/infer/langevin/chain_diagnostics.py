"""Rank-normalised split R-hat and bulk ESS of many coordinates at once, by Vehtari et al. (2021).

Each chain is split in half. With z the normal scores of a coordinate's ranks over all halves, m of them of n draws,

    R-hat² = (n - 1)/n + B/W                 B the variance of the halves' means, W the mean of their variances
    ESS    = m n / τ,    τ = -1 + 2 Σ_j P_j + ρ_2J⁺,    P_j = min over i ≤ j of ρ_2i + ρ_2i+1

ρ_t the autocorrelations of all halves together, J the first pair whose sum is not positive (Geyer's initial monotone
sequence). R-hat is the larger of this one and that of |draw - median|, which detects scales that differ. The numbers
equal ArviZ's, which computes one coordinate after the other and ranks three times.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS
from pyro_fed.ops.memory import count_in_cache

Array = NDArray[np.float64]
#: Chains of a usual run, which share `MIN_EFFECTIVE_DRAWS`.
USUAL_CHAINS = 4


def fewest_effective(num_chains: int) -> int:
    """Effective draws of all `num_chains` chains together below which a run warns: fewer of fewer than usual."""
    return MIN_EFFECTIVE_DRAWS * min(num_chains, USUAL_CHAINS) // USUAL_CHAINS


def r_hat_limit(num_chains: int) -> float:
    """R-hat above which `num_chains` chains disagree: 1.01 for up to four chains, more for more.

    Means of m halves, equivalent to e independent draws in all, have m / e times the variance of the draws, so that
    R-hat² is about 1 + m / e. The limit is that of the smallest e without a warning: the error of the chains' common
    mean is then 0.05 SDs, whatever their number.
    """
    return math.sqrt(1 + 2 * num_chains / fewest_effective(num_chains))


def chains_converged(num_chains: int, r_hat: float, ess: float, wanted: int | None) -> bool:
    """Whether chains agree by the largest R-hat, and their smallest total ESS is at least `wanted`."""
    return wanted is not None and ess >= wanted and (num_chains == 1 or r_hat <= r_hat_limit(num_chains))


def rhat_and_ess(draws: Array) -> tuple[Array, Array]:
    """R-hat (D,) and bulk ESS (D,), float64, of finite draws (chain, draw ≥ 8, D), constant in no coordinate."""
    size = count_in_cache(draws.shape[0] * draws.shape[1])
    pieces = [_of_few(draws[..., first : first + size]) for first in range(0, draws.shape[2], size)]
    r_hat, ess = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return r_hat, ess


def _of_few(draws: Array) -> tuple[Array, Array]:
    """R-hat and bulk ESS of a block of coordinates."""
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]]).transpose(2, 0, 1)  # (D, m, n)
    halves = np.ascontiguousarray(halves)  # sorting strided arrays takes twice as long
    scores, median = _normal_scores(halves)
    folded, _ = _normal_scores(np.abs(halves - median[:, None, None]))
    return np.maximum(_rhat(scores), _rhat(folded)), _ess(scores)


def _normal_scores(halves: Array) -> tuple[Array, Array]:
    """Normal scores of the ranks of each coordinate's draws, (D, m, n), where ties share one, and the median, (D,)."""
    values = halves.reshape(len(halves), -1)
    order = values.argsort(1)
    ascending = np.take_along_axis(values, order, 1)
    number = values.shape[1]
    every = _scores_of(number)
    scores = np.broadcast_to(every[::2], values.shape)
    row, place = np.nonzero(ascending[:, 1:] == ascending[:, :-1])  # a draw that is tied with the one after it
    if len(row):  # the draws next to the median are as far from it, for one
        begins = np.append(True, (row[1:] != row[:-1]) | (place[1:] != place[:-1] + 1))
        ends = np.append(begins[1:], True)
        first, last = place[begins], place[ends] + 1
        count = last - first + 1
        inside = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count) + np.repeat(first, count)
        scores = scores.copy()
        scores[np.repeat(row[begins], count), inside] = np.repeat(every[first + last], count)
    found = np.empty_like(values)
    np.put_along_axis(found, order, scores, 1)
    middle = number // 2  # the number is even
    return found.reshape(halves.shape), ascending[:, middle - 1 : middle + 1].mean(1)


@lru_cache(maxsize=2)
def _scores_of(number: int) -> Array:
    """Normal scores of all mean ranks that are possible among `number` draws: 1, 1.5, 2, ..."""
    from scipy import special

    ranks = 1 + np.arange(2 * number - 1) / 2
    found: Array = special.ndtri((ranks - 0.375) / (number + 0.25))
    return found


def _rhat(scores: Array) -> Array:
    n = scores.shape[-1]
    between, within = scores.mean(-1).var(-1, ddof=1), scores.var(-1, ddof=1).mean(-1)
    found: Array = np.sqrt(between / within + (n - 1) / n)
    return found


def _ess(scores: Array) -> Array:
    """ESS of (D, m, n)."""
    dim, m, n = scores.shape
    covariance = _autocovariances(scores)
    within = covariance[:, 0] * n / (n - 1)
    total = covariance[:, 0] + scores.mean(-1).var(-1, ddof=1)
    rho = 1 - (within[:, None] - covariance) / total[:, None]
    rho[:, 0] = 1.0
    pairs = rho[:, 0 : n - n % 2 : 2] + rho[:, 1 : n - n % 2 : 2]
    last = max(0, (n - 3) // 2)  # pairs beyond are of too few products
    first = np.logical_and.accumulate(pairs[:, :last] > 0, 1).sum(1)
    kept = np.arange(pairs.shape[1]) < first[:, None]
    lengths = 2 * np.where(kept, np.minimum.accumulate(pairs, 1), 0.0).sum(1)
    tau = lengths - 1 + np.maximum(rho[np.arange(dim), 2 * first], 0.0)
    found: Array = m * n / np.maximum(tau, 1 / np.log10(m * n))
    return found


def _autocovariances(scores: Array) -> Array:
    """Mean over the halves of their autocovariances, (D, n)."""
    from scipy import fft

    n = scores.shape[-1]
    size = fft.next_fast_len(2 * n)
    spectrum = fft.rfft(scores - scores.mean(-1, keepdims=True), size, axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).mean(1)
    found: Array = fft.irfft(power, size, axis=-1)[:, :n] / n
    return found
