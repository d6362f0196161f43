"""How far draws are from reference draws.

With draws x_s and reference draws r_s in D dimensions, m and σ the reference's means and SDs::

    mean error          max_i |mean(x)_i - m_i| / σ_i
    SD ratios           min_i and max_i of SD(x)_i / σ_i
    sliced Wasserstein  2-Wasserstein distance of the projections on random directions, averaged
                        (Bonneel et al. 2015), of draws standardised by m and σ
    MMD²                E k(x, x') + E k(r, r') - 2 E k(x, r), unbiased (Gretton et al. 2012, Eq. 3), k Gaussian
                        with the median distance of the reference draws, whitened by the reference's covariance
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pyro_fed.analysis.judging.draws import DRAWS_AT_ONCE
from pyro_fed.density.derivatives.scores import likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DataError
from pyro_fed.ops.entries import evenly

#: Distances and scores use at most this many draws, evenly spaced: kernels cost the square of their number.
MAX_COMPARED_DRAWS = 1000
#: Random directions of the sliced Wasserstein distance.
PROJECTIONS = 200
#: Directions whose reference variance is below this share of the largest are left out of the whitening.
MIN_RELATIVE_VARIANCE = 1e-6


def thin(draws: np.ndarray, count: int = MAX_COMPARED_DRAWS) -> np.ndarray:
    """At most `count` draws, evenly spaced: (S, D) → (s, D)."""
    kept: np.ndarray = draws[evenly(len(draws), count).numpy()]
    return kept


def against_reference(draws: np.ndarray, reference: np.ndarray, seed: int = 0) -> dict[str, float]:
    """All measures of draws (S, D) that need a reference's (R, D), by column name; constant columns are left out."""
    if draws.shape[1] != reference.shape[1]:
        raise DataError(f"expected {reference.shape[1]} parameters, as the reference has, received {draws.shape[1]}")
    varies = np.ptp(reference, axis=0) > 0 if len(reference) else np.zeros(0, dtype=bool)
    if not len(draws) or not varies.any():
        raise DataError("a comparison needs a draw of the result, and two of the reference that differ")
    draws, reference = draws[:, varies], reference[:, varies]  # the diagonal of a correlation matrix does not vary
    mean, sd = reference.mean(0), reference.std(0)
    ratio = np.where(np.ptp(draws, axis=0) > 0, draws.std(0), 0.0) / sd
    return {
        "mean_error": float(np.abs((draws.mean(0) - mean) / sd).max()),
        "sd_ratio_min": float(ratio.min()),
        "sd_ratio_max": float(ratio.max()),
        "sliced_wasserstein": sliced_wasserstein((thin(draws) - mean) / sd, (thin(reference) - mean) / sd, seed),
        "mmd2": mmd2(draws, reference),
    }


def sliced_wasserstein(draws: np.ndarray, reference: np.ndarray, seed: int = 0) -> float:
    """Sliced 2-Wasserstein distance: the root of the mean over random directions of ∫ (F⁻¹(u) - G⁻¹(u))² du."""
    directions = np.random.RandomState(seed).normal(size=(draws.shape[1], PROJECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    mine, truth = np.sort(draws @ directions, axis=0), np.sort(reference @ directions, axis=0)
    ends = np.union1d(np.arange(1, len(mine) + 1) / len(mine), np.arange(1, len(truth) + 1) / len(truth))
    width = np.diff(ends, prepend=0.0)
    middle = ends - width / 2  # within each piece both quantile functions are constant
    one, other = (part[np.minimum((middle * len(part)).astype(int), len(part) - 1)] for part in (mine, truth))
    return float(np.sqrt((width @ np.square(one - other)).mean()))


def mmd2(draws: np.ndarray, reference: np.ndarray) -> float:
    """Unbiased MMD² after whitening by the reference; NaN of one draw, or where the median distance is zero."""
    whiten = _whitener(reference)
    x, r = whiten(thin(draws)), whiten(thin(reference))
    from scipy.spatial.distance import cdist  # takes half a second

    between = cdist(r, r)
    width = np.median(between[np.triu_indices(len(r), 1)])
    if len(x) < 2 or width == 0:
        return math.nan

    def kernel(distance: np.ndarray) -> np.ndarray:
        similar: np.ndarray = np.exp(-0.5 * (distance / width) ** 2)
        return similar

    def within(distance: np.ndarray) -> float:
        n = len(distance)
        return float((kernel(distance).sum() - n) / (n * (n - 1)))

    return within(cdist(x, x)) + within(between) - 2 * float(kernel(cdist(x, r)).mean())


def _whitener(reference: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    mean, scale = reference.mean(0), reference.std(0)
    values, vectors = np.linalg.eigh(np.cov(((reference - mean) / scale).T).reshape(len(scale), -1))
    kept = values > MIN_RELATIVE_VARIANCE * values.max()
    root = vectors[:, kept] / np.sqrt(values[kept])
    return lambda draws: (draws - mean) / scale @ root


def scores(problem: Problem, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the log prior and of the log-likelihood at unconstrained draws (S, D), each (S, D)."""
    pieces = draws.split(DRAWS_AT_ONCE)
    prior = torch.cat([prior_scores(problem, piece) for piece in pieces])
    return prior, torch.cat([likelihood_scores(problem, piece) for piece in pieces])
