"""Reasons not to trust a result: what a statistician would check before reading it.

**How often the prior counts.** If draws z_s come from the posterior p_0(z) Π p_k(z), integration by parts
gives for every coordinate i (mean m, SD σ, Stein's identity)

    σ_i E[a s⁰_i + b s¹_i] = 0,      E[(a s⁰_i + b s¹_i)(z_i - m_i)] = -1,       a = b = 1

with s⁰ the gradient of the log prior and s¹ that of the log-likelihood. If instead the result has counted
the prior a times and the likelihood b times, the identities hold with those a, b. They are 2 D linear
equations in two unknowns, solved by weighted least squares; a standard error comes from leaving out blocks
of draws. The *prior count* is a/b, which an overall error of the spread leaves alone: 1 is right, K is a
prior counted at each of K clients, 0 is one that was lost. Where the prior says little, its count cannot be
told, and the standard error says so.

**Spread.** SDs far below those of the Laplace approximation (`laplace_sds`) mean a collapsed variance. The reverse
means nothing: at the mode of a hierarchical model the Laplace approximation is itself too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

#: Blocks of draws that are left out in turn for standard errors.
BLOCKS = 20
#: Equations whose noise is below this share of the largest weigh no more than if it were that: it may be none at all.
LEAST_NOISE = 1e-3
#: A prior counted more than this too often or too seldom is flagged...
WRONG_BY = 0.5
#: ...where it is also this many standard errors away from one.
STANDARD_ERRORS = 4.0
#: Means further off than this many reference SDs are flagged.
LARGEST_MEAN_ERROR = 0.5
#: SDs outside this multiple of the reference's, or the Laplace approximation's, are flagged.
SD_RANGE = (0.5, 2.0)


class PriorCount(NamedTuple):
    """How often the prior counts.

    Args:
        value: a/b; 1 is right.
        error: its standard error.
    """

    value: float
    error: float

    @property
    def wrong(self) -> bool:
        """Whether it is away from one by more than chance."""
        return abs(self.value - 1) > max(WRONG_BY, STANDARD_ERRORS * self.error)


def prior_count(draws: Tensor, prior_score: Tensor, likelihood_score: Tensor) -> PriorCount:
    """How often the draws count the prior, see the module's header.

    Args:
        draws: (S, D), unconstrained.
        prior_score: (S, D), gradients of the log prior.
        likelihood_score: (S, D), gradients of the log-likelihood.

    Returns:
        The count and its standard error.

    Example:
        >>> draws = unconstrained_draws(idata, fed.problem)
        >>> prior_count(draws, *scores(fed.problem, draws)).wrong
    """
    z = draws.double().numpy()
    mean, sd = z.mean(0), z.std(0)
    u = (z - mean) / sd
    scaled = [score.double().numpy() * sd for score in (prior_score, likelihood_score)]
    terms = np.stack([np.concatenate([score, score * u], 1) for score in scaled])  # (2, S, 2D)
    right = np.concatenate([np.zeros(z.shape[1]), -np.ones(z.shape[1])])
    noise = (terms.sum(0)).std(0)
    weight = 1 / np.maximum(noise, LEAST_NOISE * noise.max())
    blocks = np.array_split(np.arange(len(z)), min(BLOCKS, len(z)))
    sums, sizes = np.stack([terms[:, block].sum(1) for block in blocks]), np.array([len(b) for b in blocks])

    def solve(total: np.ndarray, size: int) -> float:
        (a, b), *_ = np.linalg.lstsq((total / size * weight).T, right * weight, rcond=None)
        return float(a / b)

    whole = solve(sums.sum(0), len(z))
    left_out = [solve(sums.sum(0) - one, len(z) - size) for one, size in zip(sums, sizes, strict=True)]
    n = len(blocks)
    return PriorCount(whole, float(np.sqrt((n - 1) / n * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))))


def spread_warnings(draws: Tensor, sds: Tensor) -> list[str]:
    """Variances that have collapsed against those of the Laplace approximation.

    Args:
        draws: (S, D), unconstrained.
        sds: (D,), of `laplace_sds`.

    Returns:
        One sentence, or none.
    """
    typical = float((draws.double().std(0, correction=0) / sds).median())
    if typical >= SD_RANGE[0]:
        return []
    return [f"variance collapse: SDs are {typical:.2g} of the Laplace approximation's (median over parameters)"]


def reference_warnings(row: Mapping[str, float]) -> list[str]:
    """What a row of the comparison says against the reference.

    Args:
        row: of `distances.against_reference`.

    Returns:
        A sentence for each mean or SD that is too far off.
    """
    found = []
    if row["mean_error"] > LARGEST_MEAN_ERROR:
        found.append(f"a mean is {row['mean_error']:.2g} reference SDs off")
    low, high = SD_RANGE
    if row["sd_ratio_min"] < low:
        found.append(f"an SD is {row['sd_ratio_min']:.2g} of the reference's")
    if row["sd_ratio_max"] > high:
        found.append(f"an SD is {row['sd_ratio_max']:.2g} times the reference's")
    return found


def density_warnings(count: PriorCount) -> list[str]:
    """What the density says without a reference.

    Args:
        count: of `prior_count`.

    Returns:
        One sentence, or none.
    """
    if not count.wrong:
        return []
    return [f"the prior counts {count.value:.1f} ± {count.error:.1f} times instead of once"]
