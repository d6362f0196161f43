"""Numbers of points in expectations: rules for a row's few numbers, and coarse rules that agree with finer ones.

Under q = N(m, R R') a client's mean score and curvature are computed at few points. Two rules differ by

    R' Δ E[s]    and    R' ΔE[H] R

the shift of the mean in SDs, and the change of the precision relative to q's. `as_many_as_needed` uses 1, n, 2 n,
4 n, ... points, with the smallest n that represents q's covariance, until two successive rules differ by less than
`RULE_TOLERANCE`. The error of the mean alone is of second order, that of n points of fourth order: for these two the
square of the difference is compared.

For many rows per parameter q is narrow, and pairs of points m ± √D R e_j, one pair per number, are compared with the
mean alone. The pairs have q's mean and covariance, and an error of about the square of the difference
(`bend_of_pairs`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from pyro_fed.conventions.limits import MATTERS
from pyro_fed.density.latents.quadrature import gauss_hermite
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.points import standardised_sobol

#: Gauss-Hermite nodes a number, by how many numbers a row depends on; beyond, Sobol points of that many dimensions.
ORDERS = {1: 9, 2: 7, 3: 5}
#: The same from so many rows a parameter on, where a row's function is nearly a parabola under q.
MANY_ROWS_A_PARAMETER, FEW_ORDERS = 500, {1: 5, 2: 4, 3: 3}
#: With fewer rows a parameter predictors may vary over several times what a row's function does: on average a row's
#: curvature times its predictor's variance is no more than parameters a row.
SCARCE_ROWS_A_PARAMETER = 10
#: There nodes are equally spaced, by how many predictors a row has: how many each, and over how many SDs to each side.
#: Of a logistic's curvature with an SD of 8 they miss 1e-4, 9 Gauss-Hermite nodes 1.1 and 41 of them 0.14.
WIDE_RULES = {1: (65, 6.0), 2: (21, 5.0)}
#: The order of the rule that is a pair of nodes a number, √numbers SDs away: exact up to cubes.
PAIRS = 2
#: Rows are straight if pairs and the mean alone find curvatures that differ by no more than such a part of q's
#: precision, and scores by no more than `MATTERS` SDs (of all clients together).
PAIR_CURVATURE_TOLERANCE = 0.02
#: Sobol points for more numbers, and where rows are scarce.
SOBOL_POINTS, WIDE_SOBOL_POINTS = 128, 512
#: The difference of two rules, in SDs and as a part of q's precision, with which the finer one is accepted.
RULE_TOLERANCE = 0.005
#: The fewest points of a rule but that of the mean alone: four and their opposites.
FEWEST_POINTS = 8


def order_of(rows: float, numbers: int) -> int:
    """Gauss-Hermite nodes a number, 0 for Sobol points, by rows a parameter and numbers that a row depends on."""
    return (FEW_ORDERS if rows >= MANY_ROWS_A_PARAMETER else ORDERS).get(numbers, 0)


@lru_cache(maxsize=16)
def rule(order: int, numbers: int, wide: int) -> tuple[Tensor, Tensor]:
    """Nodes (K, numbers) and weights (K,) for N(0, I), the last `wide` numbers' spread wide, as where rows are scarce.

    `order` is of Gauss-Hermite nodes of a number; 0 takes Sobol points, 1 the mean alone, 2 `PAIRS`.
    """
    if order == 1 or not numbers:
        return torch.zeros(1, numbers, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    if order == PAIRS:
        half = numbers**0.5 * torch.eye(numbers, dtype=torch.float64)
        return torch.cat([half, -half]), torch.full((2 * numbers,), 0.5 / numbers, dtype=torch.float64)
    if wide in WIDE_RULES and order:
        return _product(rule(order, numbers - wide, 0), _equally_spaced(*WIDE_RULES[wide], wide))
    if order:
        nodes, weights = gauss_hermite(ORDERS[1] if wide else order, numbers)  # wide: as fine as for one number
        return nodes, weights.exp()
    count = WIDE_SOBOL_POINTS if wide else SOBOL_POINTS
    return standardised_sobol(count, numbers), torch.full((count,), 1.0 / count, dtype=torch.float64)


def _equally_spaced(count: int, reach: float, numbers: int) -> tuple[Tensor, Tensor]:
    """The product of trapezoidal rules for N(0, 1), which converge exponentially (Trefethen & Weideman 2014)."""
    line = torch.linspace(-reach, reach, count, dtype=torch.float64)
    weight = torch.softmax(-line.square() / 2, 0)
    every = torch.cartesian_prod(*[torch.arange(count)] * numbers).reshape(-1, numbers)
    return line[every], weight[every].prod(1)


def _product(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product of two rules."""
    nodes = torch.cat([one[0].repeat_interleave(len(other[0]), 0), other[0].repeat(len(one[0]), 1)], 1)
    return nodes, (one[1].unsqueeze(1) * other[1]).flatten()


def bend_of_pairs(score: Tensor, curvature: Tensor, share: Tensor, allowed_shift: float = MATTERS) -> Tensor:
    """How far rows are from straight, (C,); 1 is as far as they may be.

    `score` and `curvature` are the largest differences between the rule of pairs and the mean alone, in SDs and as a
    part of q's precision; scores of all clients together may differ by `allowed_shift` SDs.
    """
    return torch.maximum(curvature / share / PAIR_CURVATURE_TOLERANCE, score / share / allowed_shift)


def as_many_as_needed(points: Tensor, means: Callable[[Tensor], Moments]) -> Moments:
    """The means at the smallest number of points that agrees with half of it, by clients; at `points` otherwise."""
    count, _, dim = points.shape
    number = FEWEST_POINTS
    while number < 2 * dim:  # fewer have not the covariance
        number *= 2
    mean, root = _mean_and_root(points)
    spent, affordable = 1, count // 2
    if root is None or spent + number > affordable:
        return means(points)
    found = means(mean[None].to(points.dtype))
    settled = torch.zeros(len(mean), dtype=torch.bool, device=points.device)
    while spent + number <= affordable:
        spread = (root @ standardised_sobol(number, dim).to(root).mT).movedim(2, 0)  # (number, C, D)
        finer = means((mean + spread).to(points.dtype).contiguous())
        difference = torch.maximum(*differences(found, finer, root))
        agree = (difference.square() if spent == 1 else difference) < RULE_TOLERANCE  # NaN is not less
        found = where_settled(settled, found, finer)
        settled = settled | agree
        if bool(settled.all()):
            return found
        spent, number = spent + number, 2 * number
    return where_settled(settled, found, means(points))


def where_straight(
    points: Tensor,
    share: Tensor,
    at_mean: Callable[[Tensor], Moments],
    at_pairs: Callable[[Tensor], Moments],
    all_points: Callable[[], Moments],
) -> Moments:
    """The means at pairs of points, of clients whose rows are nearly parabolas under q; at all points of the others.

    `points` (S, C, D) have q's mean and covariance. `at_mean` takes one point (1, C, D), `at_pairs` (2 D, C, D), the
    opposites in the second half.
    """
    mean, root = _mean_and_root(points)
    if root is None:
        return all_points()
    nodes = rule(PAIRS, points.shape[-1], 0)[0].to(root)
    pairs = mean + (root @ nodes.mT).movedim(2, 0)
    one, few = at_mean(mean[None].to(points.dtype)), at_pairs(pairs.to(points.dtype).contiguous())
    straight = bend_of_pairs(*differences(one, few, root), share) < 1
    return few if bool(straight.all()) else where_settled(straight, few, all_points())


def _mean_and_root(points: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mean (C, D) and root of the covariance (C, D, D) of points (S, C, D); None where it has none."""
    mean = points.double().mean(0)
    by_client = (points.double() - mean).transpose(0, 1)
    root, failed = torch.linalg.cholesky_ex(by_client.mT @ by_client / len(points))
    return mean, None if bool(failed.any()) else root


def differences(one: Moments, other: Moments, root: Tensor) -> tuple[Tensor, Tensor]:
    """By how much two rules differ, in SDs and as a part of the precision, each (C,); q has the covariance R R'."""
    pull = (root.mT @ (other.score - one.score)[..., None].double())[..., 0]
    change = (other.curvature - one.curvature).double()
    diagonal = change.dim() == 2
    bend = change * root.square().sum(-1) if diagonal else (root.mT @ change @ root).flatten(1)
    return pull.abs().amax(1), bend.abs().amax(1)


def where_settled(which: Tensor, one: Moments, other: Moments) -> Moments:
    """The first means for clients in `which`, the second means for the others."""
    return Moments(*(choose(which, a, b) for a, b in zip(one, other, strict=True)))


def finite_or(found: Moments | None, others: Callable[[], Moments]) -> Moments:
    """Means by the structure of rows; `others`, without it, of clients for whom there is none or one is not finite."""
    if found is None:
        return others()
    finite = found.finite()
    return found if bool(finite.all()) else where_settled(finite, found, others())
