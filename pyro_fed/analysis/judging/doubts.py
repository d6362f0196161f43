"""Reasons to doubt a result that need no reference: the number of times the prior was counted, and the spread.

**How often the prior counts.** Let z be draws of the posterior p_0(z) Π_k p_k(z), s⁰ the gradient of the log prior and
s¹ the gradient of the log-likelihood. For every vector field f, integration by parts gives (Stein's identity)

    E[(a s⁰ + b s¹)·f + div f] = 0,       a = b = 1

If the result has counted the prior a times and the likelihood b times, the identity holds with those a and b. Two
fields give two linear equations for a and b. The *prior count* is a/b: 1 is right, K is a prior that each of K clients
has counted, 0 is a prior that was lost. If all SDs are wrong by the same factor, a and b are wrong by the same factor
too, and the ratio is still 1. With a weak prior, its count is not determined, and the standard error is large.

The two fields are linear in coordinates u that whiten the draws:

    f_1 = g - ½ A u,    f_2 = -½ u,       g = E s⁰,    A = -E s⁰ u'

If the posterior is Gaussian, their equations are those of maximum likelihood, so that no others have smaller errors.
The draws are split into blocks. Each block's equations use the whitening, g and A of all other blocks, so that they are
unbiased. The spread of the equations over blocks gives the standard error of the count, and Student's t of a = b.

A count that is wrong need not be the cause. For draws of the posterior, s = a s⁰ + b s¹ with a = b = 1 satisfies

    E s = 0,   E s u' = -1,   E s_i (u_i² - 1) = 0

The count *explains* the draws if, with the estimated a and b, the squared violation of these identities that is left
beyond chance is no larger than the squared violation that a and b have removed.

**Spread.** SDs far below those of the Laplace approximation (`laplace_sds`) mean a collapsed variance. SDs far above
mean nothing: at the mode of a hierarchical model the Laplace approximation is itself too narrow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from pyro_fed.analysis.judging.ksd import DENSITY_FALSE_ALARM_CHANCE, Discrepancy, whiten_draws
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding

#: Blocks of draws whose equations give standard errors.
BLOCKS = 20
#: A prior count is flagged if it differs from one by more than this: half a prior too much or too little.
MAX_COUNT_ERROR = 0.5
#: SDs are flagged whose median ratio to the Laplace approximation's is below this.
MIN_SD_RATIO = 0.5


class PriorCount(NamedTuple):
    """How often the draws have counted the prior, see the module's header.

    Args:
        value: the count a/b; 1 is right.
        error: its standard error.
        away: Student's t of the hypothesis a = b. It is valid even if the count itself has a large error.
        explains: whether the estimated a and b explain the draws better than a = b = 1.
    """

    value: float
    error: float
    away: float
    explains: bool

    @property
    def is_wrong(self) -> bool:
        """Whether the count differs from one by more than chance and by enough to matter, and explains the draws."""
        return self.differs_from_one and abs(self.value - 1) > MAX_COUNT_ERROR

    @property
    def differs_from_one(self) -> bool:
        """Whether the count differs from one by more than chance, and explains the draws."""
        return self.explains and self.away > -float(special.stdtrit(BLOCKS - 2, DENSITY_FALSE_ALARM_CHANCE / 2))


def prior_count(draws: Tensor, prior_score: Tensor, likelihood_score: Tensor) -> PriorCount:
    """The prior's count and its error, from unconstrained draws (S, D) in order and both scores; NaN of few draws."""
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
    away = np.linalg.pinv(total) @ residual.T * math.sqrt(BLOCKS / (BLOCKS - 2))  # each block's share of the errors
    ratio = float(a / b) if b != 0 else math.inf
    error = float(np.sqrt(np.square(away[0] - ratio * away[1]).sum())) / abs(b) if b != 0 else math.inf
    before, noise = _violation(z, scores, 1.0, 1.0)
    after, _ = _violation(z, scores, float(a), float(b))
    return PriorCount(ratio, error, _t_of_equal_slopes(left, right), explains=after - noise <= before - after)


def _t_of_equal_slopes(left: np.ndarray, right: np.ndarray) -> float:
    """Student's t of the hypothesis a = b: the first equation's residual, with b found from the second equation."""
    both = left.sum(2)
    b = right[:, 1].sum() / both[:, 1].sum()
    prior, total = (b * both - right).T
    each = prior - total * both[:, 0].sum() / both[:, 1].sum()
    return float(abs(each.sum()) / (math.sqrt(BLOCKS) * each.std(ddof=2)))


def _equations(z: Tensor, scores: Tensor, block: Tensor) -> Tensor:
    """The equations (2, 3) of a block by all other blocks' fields: factors of a and b, and the right-hand side."""
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
    """The squared violation of the header's identities for a and b, and its part by chance, in SDs of a Gaussian's."""
    u, prior, likelihood = whiten_draws(z, *scores)
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


def spread_findings(draws: Tensor, sds: Tensor) -> list[Finding]:
    """One finding if the SDs of draws (S, D) are far below those of the Laplace approximation (D,), or none."""
    typical = float((draws.double().std(0, correction=0) / sds).median())
    return [] if typical >= MIN_SD_RATIO else [sentences.variance_collapse(ratio=typical)]


def density_findings(count: PriorCount, distance: Discrepancy, site: str) -> list[Finding]:
    """Up to two findings, by the prior's count and by KSD; `site` has the mean score farthest from zero."""
    found = list[Finding]()
    if count.is_wrong:
        found.append(sentences.prior_miscounted(count=count.value, error=count.error))
    elif count.differs_from_one:
        found.append(sentences.prior_count_near_one(count=count.value, error=count.error, limit=MAX_COUNT_ERROR))
    if distance.is_wrong:
        found.append(sentences.draws_far_from_density(parameter=site, ksd=distance.value, limit=distance.limit))
    return found
