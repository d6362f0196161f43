"""Reasons not to trust a result that need no reference.

**How often the prior counts.** If draws z_s come from the posterior p_0(z) Π p_k(z), integration by parts gives for
every vector field f (Stein's identity)

    E[(a s⁰ + b s¹)·f + div f] = 0,       a = b = 1

with s⁰ the gradient of the log prior and s¹ that of the log-likelihood. If instead the result has counted the prior a
times and the likelihood b times, it holds with those a, b: two fields make two linear equations. The fields are linear,
in coordinates u that whiten the draws: f = u, and f = g - ½ A u with g = E s⁰ and A = -E s⁰u', under which, where the
posterior is Gaussian, the equations are those of maximum likelihood, so that no other has smaller errors. They use the
whole matrix E s⁰u'. A block of draws is asked with the coordinates, g and A of the others, which leaves the
equations without bias; the blocks' sums say how uncertain a and b are, and how far the first equation is from what it
would be with a = b. The *prior count* is a/b, which an overall error
of the spread leaves alone: 1 is right, K is a prior counted at each of K clients, 0 is one that was lost. Where the
prior says little, its count cannot be told, and the standard error says so.

A count that is off is the cause only if it explains what is wrong: with a and b the identities

    E s = 0,   E s u' = -1,   E s_i (u_i² - 1) = 0,      s = a s⁰ + b s¹

are no longer violated, or less than they were with a = b = 1 by more than what is left.

**Spread.** SDs far below those of the Laplace approximation (`laplace_sds`) mean a collapsed variance. The reverse
means nothing: at the mode of a hierarchical model the Laplace approximation is itself too narrow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from pyro_fed.analysis.judging.ksd import Discrepancy, whitened

#: Blocks of draws whose equations give standard errors.
BLOCKS = 20
#: A prior counted more than this too often or too seldom is flagged...
WRONG_BY = 0.5
#: ...unless chance does it more often than this.
FALSE_ALARMS = 0.005
#: SDs below this share of the Laplace approximation's are flagged.
LEAST_SPREAD = 0.5


class PriorCount(NamedTuple):
    """How often the prior counts.

    Args:
        value: a/b; 1 is right.
        error: its standard error.
        away: Student's t of the hypothesis that it is one, which holds also where the count can hardly be told.
        explains: whether the likelihood and a prior that counts so often explain the draws better than the posterior.
    """

    value: float
    error: float
    away: float
    explains: bool

    @property
    def wrong(self) -> bool:
        """Whether it is away from one by more than chance, and explains what is wrong."""
        chance = -float(special.stdtrit(BLOCKS - 2, FALSE_ALARMS / 2))
        return self.explains and abs(self.value - 1) > WRONG_BY and self.away > chance


def prior_count(draws: Tensor, prior_score: Tensor, likelihood_score: Tensor) -> PriorCount:
    """How often the draws count the prior, see the module's header.

    Args:
        draws: (S, D), unconstrained, in the order in which they were drawn; they vary in every coordinate.
        prior_score: (S, D), gradients of the log prior.
        likelihood_score: (S, D), gradients of the log-likelihood.

    Returns:
        The count and its standard error, NaN where the draws are too few for them.

    Example:
        >>> draws = unconstrained_draws(idata, fed.problem)
        >>> prior_count(draws, *scores(fed.problem, draws)).wrong
    """
    if len(draws) < 2 * BLOCKS:
        return PriorCount(math.nan, math.nan, math.nan, explains=False)
    scale = draws.double().std(0)
    z, scores = draws.double() / scale, torch.stack([prior_score, likelihood_score]).double() * scale
    blocks = torch.arange(len(z)).tensor_split(BLOCKS)
    equations = torch.stack([_equations(z, scores, block) for block in blocks]).numpy()
    left, right = equations[:, :, :2], equations[:, :, 2]
    total = left.sum(0)
    a, b = np.linalg.lstsq(total, right.sum(0), rcond=None)[0]
    residual = left @ np.array([a, b]) - right
    away = np.linalg.pinv(total) @ residual.T * math.sqrt(BLOCKS / (BLOCKS - 2))  # of a and b, block by block
    ratio = float(a / b) if b != 0 else math.inf
    error = float(np.sqrt(np.square(away[0] - ratio * away[1]).sum())) / abs(b) if b != 0 else math.inf
    before, noise = _violation(z, scores, 1.0, 1.0)
    after, _ = _violation(z, scores, float(a), float(b))
    return PriorCount(ratio, error, _away(left, right), explains=after - noise <= before - after)


def _away(left: np.ndarray, right: np.ndarray) -> float:
    """Student's t of the equation of the prior where a = b, and that is what the other equation says it is."""
    both = left.sum(2)
    b = right[:, 1].sum() / both[:, 1].sum()
    prior, total = (b * both - right).T
    each = prior - total * both[:, 0].sum() / both[:, 1].sum()
    return float(abs(each.sum()) / (math.sqrt(BLOCKS) * each.std(ddof=2)))


def _equations(z: Tensor, scores: Tensor, block: Tensor) -> Tensor:
    """Two equations (left of a, left of b, right) that a block of draws gives, fields from all the others: (2, 3)."""
    others = torch.ones(len(z), dtype=torch.bool)
    others[block] = False
    mean = z[others].mean(0)
    offsets = z[others] - mean
    factor, failed = torch.linalg.cholesky_ex(offsets.T @ offsets / len(offsets))
    if bool(failed):
        factor = torch.diag(offsets.square().mean(0).sqrt())
    prior = scores[0, others] @ factor
    u = torch.linalg.solve_triangular(factor, offsets.T, upper=False).T
    slope = -prior.T @ u / len(u)
    slope = (slope + slope.T) / 2
    mine = torch.linalg.solve_triangular(factor, (z[block] - mean).T, upper=False).T
    fields = torch.stack([prior.mean(0) - mine @ slope / 2, -mine / 2])
    left = torch.einsum("fsd,ksd->fk", fields, scores[:, block] @ factor)
    right = len(block) / 2 * torch.stack([slope.trace(), torch.tensor(float(z.shape[1]), dtype=z.dtype)])
    return torch.cat([left, right[:, None]], 1)


def _violation(z: Tensor, scores: Tensor, a: float, b: float) -> tuple[float, float]:
    """Squares of what violates the identities, in the units of their noise for a Gaussian, and how much is chance."""
    u, prior, likelihood = whitened(z, *scores)
    s = a * prior + b * likelihood
    identity = torch.eye(u.shape[1], dtype=u.dtype)
    found = []
    for part, at in zip(s.tensor_split(BLOCKS), u.tensor_split(BLOCKS), strict=True):
        matrix = part.T @ at / len(at)
        second = (matrix + matrix.T) / 2 + identity
        third = (part * (at.square() - 1)).mean(0)
        found.append(torch.cat([part.mean(0), second.flatten() / math.sqrt(2), third / math.sqrt(2)]))
    blocks = torch.stack(found)
    chance = (blocks - blocks.mean(0)).square().sum() / (BLOCKS * (BLOCKS - 1))
    return float(blocks.mean(0).square().sum()), float(chance)


def spread_warnings(draws: Tensor, sds: Tensor) -> list[str]:
    """Variances that have collapsed against those of the Laplace approximation.

    Args:
        draws: (S, D), unconstrained and finite.
        sds: (D,), of `laplace_sds`.

    Returns:
        One sentence, or none.
    """
    typical = float((draws.double().std(0, correction=0) / sds).median())
    if typical >= LEAST_SPREAD:
        return []
    return [f"variance collapse: SDs are {typical:.2g} of the Laplace approximation's (median over parameters)"]


def density_warnings(count: PriorCount, distance: Discrepancy, site: str) -> list[str]:
    """What the density says without a reference.

    Args:
        count: of `prior_count`.
        distance: of `discrepancy`.
        site: where the mean score is farthest from zero.

    Returns:
        A sentence each, where they speak against the result.
    """
    found = []
    if count.wrong:
        found.append(f"the prior counts {count.value:.1f} ± {count.error:.1f} times instead of once")
    if distance.wrong:
        found.append(
            f"the draws are not those of the model's posterior: KSD is {distance.value:.2g}, where chance and small "
            f"errors explain {distance.limit:.2g}, most of all in '{site}'"
        )
    return found
