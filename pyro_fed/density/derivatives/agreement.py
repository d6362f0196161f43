"""As many points as an expectation needs: few where few agree with twice as many, all where they do not.

Under q = N(m, S) the means of a client's score and curvature are taken at 1, n, 2 n, 4 n, ... points, n the fewest that
have S exactly. Where two rules that follow one another differ by less than `AGREE` in

    R' Δ E[s]    and    R' ΔE[H] R,        S = R R',

the shift of the mean in SDs and the change of the precision as a part of q's that the difference makes, the finer one
is taken. The mean alone misses what is of second order, and the next rule what is of fourth: there the square of the
difference has to be less. The more rows, the narrower q and the straighter the score where q is. A client's own rows
decide, not who is computed beside it.

With very many rows a parameter a pair of points a parameter is tried first, m ± √D R e_j, which has q's mean and
covariance and no more: where it and the mean alone differ by little, what it misses is the square of that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fed.conventions.limits import MATTERS
from pyro_fed.density.derivatives.nodes import CLOSE, PAIRS, rule
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.points import standardised_sobol

#: Difference of two rules, in SDs and as a part of q's precision, with which the finer one is accepted.
AGREE = 0.005
#: Points of the coarsest rule but that of the mean alone, and the part of all points that is worth a try.
FEWEST_RULE_POINTS, TRIED_POINTS_DIVISOR = 8, 2


def as_many_as_needed(points: Tensor, means: Callable[[Tensor], Moments]) -> Moments:
    """The means at the fewest points that agree with half as many, each client's by its own.

    Args:
        points: (S, C, D), which have q's mean and covariance; all of them are the last resort.
        means: computes the means at points (s, C, D).
    """
    count, _, dim = points.shape
    fewest = FEWEST_RULE_POINTS
    while fewest < 2 * dim:  # fewer have not the covariance
        fewest *= 2
    mean = points.double().mean(0)
    root, failed = torch.linalg.cholesky_ex(_covariance(points.double() - mean))
    spent, number = 1, fewest
    if bool(failed.any()) or spent + number > count // TRIED_POINTS_DIVISOR:
        return means(points)
    found = means(mean[None].to(points.dtype))
    settled = torch.zeros(len(mean), dtype=torch.bool, device=points.device)
    while spent + number <= count // TRIED_POINTS_DIVISOR:
        spread = (root @ standardised_sobol(number, dim).to(root).mT).movedim(2, 0)  # (number, C, D)
        finer = means((mean + spread).to(points.dtype).contiguous())
        difference = _rule_difference(found, finer, root)
        agree = (difference.square() if spent == 1 else difference) < AGREE
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

    Args:
        points: (S, C, D), which have q's mean and covariance.
        share: of all rows, that each client has, (C,).
        at_mean: computes the means at one point (1, C, D).
        at_pairs: at pairs of points (2 D, C, D), each pair in two halves of the points.
        all_points: at all points.
    """
    mean = points.double().mean(0)
    root, failed = torch.linalg.cholesky_ex(_covariance(points.double() - mean))
    if bool(failed.any()):
        return all_points()
    nodes = rule(PAIRS, points.shape[-1], 0)[0].to(root)
    pairs = mean + (root @ nodes.mT).movedim(2, 0)
    one, few = at_mean(mean[None].to(points.dtype)), at_pairs(pairs.to(points.dtype).contiguous())
    moved, bent = differences(one, few, root)
    straight = (moved < MATTERS * share) & (bent < CLOSE * share)
    return few if bool(straight.all()) else where_settled(straight, few, all_points())


def _covariance(away: Tensor) -> Tensor:
    """Of S points around their mean (S, C, D): (C, D, D)."""
    by_client = away.transpose(0, 1)
    return by_client.mT @ by_client / len(away)


def _rule_difference(one: Moments, other: Moments, root: Tensor) -> Tensor:
    """By how much two rules differ, in SDs and as a part of the precision, the larger: (C,); nan is not less."""
    return torch.maximum(*differences(one, other, root))


def differences(one: Moments, other: Moments, root: Tensor) -> tuple[Tensor, Tensor]:
    """By how much two rules differ, in SDs and as a part of the precision, each (C,).

    Args:
        one: means by one rule.
        other: by another one.
        root: R of q's covariance R R', (C, D, D).
    """
    pull = (root.mT @ (other.score - one.score)[..., None].double())[..., 0]
    change = (other.curvature - one.curvature).double()
    diagonal = change.dim() == 2
    bend = change * root.square().sum(-1) if diagonal else (root.mT @ change @ root).flatten(1)
    return pull.abs().amax(1), bend.abs().amax(1)


def where_settled(which: Tensor, one: Moments, other: Moments) -> Moments:
    """The one's means of some clients, the other's of the rest."""
    return Moments(*(choose(which, a, b) for a, b in zip(one, other, strict=True)))
