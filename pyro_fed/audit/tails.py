"""Tails, slabs and modes where a result has no draws and which chains hardly reach, by `weighted_points`.

Chains that begin at a result's draws move only slowly into a tail that the draws lack, and look settled before they
have arrived. For a zero-inflated count they found an SD of 1.03 ± 0.05 times the result's; the true factor is 1.33.
Weighted points are drawn elsewhere too and have no such memory. In few dimensions they can be trusted, except for a
number whose variance depends on few points. If they find a number wrong, this overrules chains that find it right.

Deterministic sites are judged by the tails of their own draws. They are right if the latents are right, but may have no
variance although all latents have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fed.audit.moments import LONG, Moments, Quantities, kurtosis, told_by_tails
from pyro_fed.audit.target import Target
from pyro_fed.audit.weighted_points import WeightedPoints
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SD_MATTERS, STANDARD_ERRORS
from pyro_fed.density.problem import Problem
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed
from pyro_fed.policy.audit import CHAINS

#: The smallest effective number of points for the terms of a number's variance.
FEWEST_EFFECTIVE_POINTS = 50
#: The fewest draws that show the shape of a tail: a tenth of them are in it, and its k has a standard error of 0.2.
FEWEST_OF_A_TAIL = 800
#: Draws at which the fall of a density is measured; and the distance from the median, in interquartile ranges.
POWERS_AT, FAR_OUT = 16, (300.0, 3000.0)
#: A density that falls like this power of |x| or a smaller one has no variance: three, and a margin for other terms so
#: far out.
NO_VARIANCE = 3.05


def moments_by_weights(target: Target, quantities: Quantities, draws: Tensor, found: WeightedPoints) -> Moments:
    """The posterior's moments of `quantities` by weighted points, relative to the result's draws (S, D)."""
    points = quantities(target.model(found.white))
    return moments_of_weighted_points(found.weights, points, quantities(draws.double()), target.problem.dim)


def few_draws_tell(
    target: Target, quantities: Quantities, draws: Tensor, points_of: Callable[[], WeightedPoints | None]
) -> list[Finding]:
    """A number whose tail is so long that the draws do not determine its SD, even if all of them are right.

    One finding, on the longest tail; none if no tail is long, or the weighted points do not show it. `points_of` is
    called only if some of the draws (S, D) have a long tail.
    """
    long = kurtosis(quantities(draws.double())) > LONG
    if not bool(long.any()):
        return []
    if none := _without_variance(target, draws, long):
        return [sentences.no_variance(parameter=quantities.labels[none[0]])]
    if (found := points_of()) is None:
        return []
    weights, points = found.weights, quantities(target.model(found.white))
    away = (points - weights @ points).square()
    longest = ((weights @ away.square()) / (weights @ away).square()).nan_to_num(nan=0.0, posinf=0.0)
    untold = longest > 1 + len(draws) * (2 * math.log(SD_MATTERS)) ** 2
    untold |= long & (longest > LONG) & torch.tensor([_tail(weights * terms) > LARGEST_PARETO_K for terms in away.T])
    if not bool(untold.any()):
        return []
    number = int(torch.where(untold, longest, 0.0).argmax())
    name = quantities.labels[number]
    return [sentences.draws_do_not_tell(parameter=name, kurtosis=float(longest[number]), draws=len(draws))]


def _without_variance(target: Target, draws: Tensor, long: Tensor) -> list[int]:
    """Entries of the flat vector whose conditional density, given the others, falls like |x|^-3 or more slowly.

    The tail of the draws (S, D) does not show that. Algorithms reach Cauchy's tail only as far as their steps or
    weights go: Pareto's k of draws was 0.2; that of the Cauchy distribution is 1. `long` is whether each number's draws
    have a long tail (F,).
    """
    z = draws[evenly(len(draws), POWERS_AT)].double()
    found = []
    for number in long[: z.shape[1]].nonzero()[:, 0].tolist():
        column = draws[:, number].double()
        low, middle, high = column.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        powers = []
        for side in (-1, 1):
            at = []
            for far in FAR_OUT:
                moved = z.clone()
                moved[:, number] = middle + side * far * (high - low)
                at.append(target.values(target.white(moved)))
            powers.append(
                float(((at[0] - at[1]) / math.log(FAR_OUT[1] / FAR_OUT[0])).nan_to_num(nan=math.inf).median())
            )
        if min(powers) < NO_VARIANCE:
            found.append(number)
    return found


def _tail(terms: Tensor) -> float:
    """Pareto's k of the terms of a sum (N,)."""
    return smoothed(terms.clamp_min(torch.finfo(terms.dtype).tiny).log()).pareto_k


def reported_without_variance(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on the deterministic site with the longest tail without a variance, if any, such as a ratio.

    Sites inside the plate are not examined, nor fewer draws (S, D) than `FEWEST_OF_A_TAIL`.
    """
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    if not names or len(draws) < FEWEST_OF_A_TAIL:
        return []
    found = problem.constrain(draws.to(problem.dtype), problem.fewest_rows)
    longest, said = LARGEST_PARETO_K, ""
    for name in names:
        for number, values in enumerate(found[name].reshape(len(draws), -1).double().T):
            away = (values - values.median()).abs()
            if not bool(away.isfinite().all()) or not float(away.median()) > 0:
                continue
            k = smoothed(away.clamp_min(torch.finfo(away.dtype).tiny).log()).pareto_k
            if k > longest:
                longest, said = k, problem.entry_of(problem.reported[name], number)
    if not said:
        return []
    return [sentences.no_variance_of_draws(parameter=said, pareto_k=longest)]


def moments_of_weighted_points(weights: Tensor, points: Tensor, draws: Tensor, dim: int) -> Moments:
    """The posterior's moments by weighted points, relative to those of draws.

    A number is not judged (its standard errors are zero) if it is not finite somewhere, or if its variance or its tail
    cannot be determined.

    Args:
        weights: the points' weights (N,), which sum to one.
        points: the numbers at the points (N, F).
        draws: the numbers at the draws (S, F).
        dim: number of unconstrained numbers, which come first.
    """
    centre, scale = draws.mean(0), draws.std(0)
    usable = points.isfinite().all(0) & centre.isfinite() & (scale > 0) & scale.isfinite()
    y = torch.where(usable, (points - centre) / scale, 0.0)
    mean = weights @ y
    away = (y - mean).square()
    variance = weights @ away
    squares = weights.square()
    # The effective number of terms is (Σ w a)² / Σ (w a)².
    usable &= variance.square() > FEWEST_EFFECTIVE_POINTS * (squares @ away.square())
    variance = torch.where(usable, variance, 1.0)
    left, come = kurtosis(draws), (weights @ away.square()) / variance.square()
    # The weighted points show how long the posterior's tail is, also on a site's own scale.
    own = torch.arange(len(come)) >= dim
    mean_error = (squares @ away).sqrt() / variance.sqrt()
    log_error = (squares @ (away - variance).square()).sqrt() / (2 * variance)
    chance = ((come - 1) / len(draws)).sqrt() / 2  # of as many exact draws
    lacking = variance.log() / 2 > STANDARD_ERRORS * torch.hypot(chance, log_error)
    enough = (STANDARD_ERRORS * chance <= math.log(SD_MATTERS)) | ((chance <= math.log(SD_MATTERS)) & lacking)
    usable &= torch.where(own, enough, told_by_tails(left, come, dim, CHAINS))

    def where_usable(figure: Tensor) -> Tensor:
        return torch.where(usable, figure, 0.0)

    return Moments(
        where_usable(mean / variance.sqrt()),
        where_usable(mean_error),
        where_usable(variance.log() / 2),
        where_usable(log_error),
        by="weights",
    )
