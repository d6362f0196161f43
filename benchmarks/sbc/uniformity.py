"""Are ranks uniform, and do intervals cover as they say?"""

from __future__ import annotations

import numpy as np
from scipy import special

#: Bins of the chi-square test.
BINS = 10
#: Where the empirical distribution is looked at, and samples behind its p-value.
POINTS, SIMULATED = 99, 1000
#: Central intervals whose coverage is counted.
INTERVALS = (0.5, 0.8, 0.9)


def smooth(rank: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Ranks 0..draws as numbers that are uniform on (0, 1) where the ranks are uniform.

    Args:
        rank: (n,) draws below the truth.
        draws: how many there were.
        rng: breaks ties.
    """
    numbers: np.ndarray = (rank + rng.uniform(size=len(rank))) / (draws + 1)
    return numbers


def chi_square(u: np.ndarray) -> float:
    """The p-value of equal counts in `BINS` bins.

    Args:
        u: (n,) in (0, 1).
    """
    counts = np.histogram(u, BINS, (0.0, 1.0))[0]
    expected = len(u) / BINS
    return float(special.chdtrc(BINS - 1, ((counts - expected) ** 2 / expected).sum()))


def _least_tail(u: np.ndarray) -> np.ndarray:
    """Of samples (m, n), the least two-sided binomial tail of their distribution functions over a grid, (m,)."""
    z = np.arange(1, POINTS + 1) / (POINTS + 1)
    counts = (u[:, :, None] <= z).sum(1)
    below, above = special.bdtr(counts, u.shape[1], z), special.bdtrc(counts - 1, u.shape[1], z)
    least: np.ndarray = 2 * np.minimum(below, above).min(1)
    return least


def ecdf(u: np.ndarray) -> float:
    """The p-value of the distance of the empirical distribution from the uniform one, by simulation.

    Args:
        u: (n,) in (0, 1).

    References:
        Säilynoja, Bürkner & Vehtari (2022), Graphical test for discrete uniformity, Statistics and Computing 32.
    """
    rng = np.random.default_rng(len(u))
    null = np.concatenate([_least_tail(rng.uniform(size=(100, len(u)))) for _ in range(SIMULATED // 100)])
    return float((1 + (null <= _least_tail(u[None])[0]).sum()) / (1 + SIMULATED))


def coverage(u: np.ndarray) -> list[float]:
    """The share of truths inside each of the central `INTERVALS`.

    Args:
        u: (n,) in (0, 1).
    """
    return [float((np.abs(u - 0.5) <= width / 2).mean()) for width in INTERVALS]
