"""Weighted points of the posterior, around a result's draws and wherever else it may have mass; tails, slabs and modes.

They come from adaptive multiple importance sampling (`ops.adaptive_importance`), driven by a loop.

**The first points** come in equal shares from mixtures fitted to the draws and to draws of the prior, and from around
the draws' centre, with the widths `NEAR_WIDTHS` and with far larger ones, up to the prior's. So there are points in a
slab around a spike; a search for modes climbs from there to the spike, and chains from the spike do not enter the slab.
If few rows stand for all, they do so near the draws only, and points are drawn there only.

**The end.** No points are added once `SETTINGS` are met, for means and for variances, or after `MAX_ROUNDS` rounds. If
they are then worth fewer than `MIN_EFFECTIVE_DRAWS`, as in many dimensions, none are returned.

**What they show.** Chains that begin at a result's draws move slowly into a tail that the draws lack, and look settled
before they arrive; weighted points have no such memory. In few dimensions they can be trusted, except for a number
whose variance depends on few points. If they find a number wrong, this overrules chains that find it right.

Deterministic sites are judged by the tails of their own draws: they may have no variance although all latents have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.moments import LONG_TAIL_KURTOSIS, Moments, Quantities, judgeable_sds, kurtosis
from pyro_fed.audit.target import BATCHES, Target
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS, SD_MATTERS, STANDARD_ERRORS
from pyro_fed.density.checks.points import NUM_DRAWS
from pyro_fed.density.problem import Problem
from pyro_fed.ops.adaptive_importance import (
    COMPONENTS,
    FIT_STEPS,
    NEGLIGIBLE_NATS,
    AdaptiveImportanceSampler,
    AdaptiveSettings,
)
from pyro_fed.ops.entries import SAMPLED_ENTRIES, evenly
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed
from pyro_fed.ops.student import Mixture, fitted
from pyro_fed.policy.audit import CHAINS, takes_weighted_points, weighted_points

#: The most rounds. A round has as many points as are computed together, or fewer where they cost much.
MAX_ROUNDS = 6
#: The fewest points of a round, of which each of the first mixture's parts has some.
POINTS_A_ROUND = 512
#: Widths of the points around the draws, in the draws' own. Beyond these, widths are powers of the last one, up to the
#: prior's SD, and at most `MAX_WIDTH`.
NEAR_WIDTHS, MAX_WIDTH = (1.0, 1.5, 3.0), 1000.0
#: No points are added once their effective number is this large, and the weights' tail can be trusted.
SETTINGS = AdaptiveSettings(enough=SAMPLED_ENTRIES, longest_tail=0.5, second_moments=True)
#: Effective number of points for a fit.
FIT_ON = 5 * COMPONENTS
#: The smallest effective number of points for the terms of a number's variance: n of them leave its SD an error of
#: 1 / (2 √n), as a logarithm.
MIN_TERMS_OF_VARIANCE = (STANDARD_ERRORS / (2 * math.log(SD_MATTERS))) ** 2
#: The fewest draws that show the shape of a tail: a tenth of them are in it, and its k has a standard error of 0.2.
MIN_TAIL_DRAWS = 800
#: Distances from the median, in interquartile ranges, between which the fall of a density is measured.
TAIL_DISTANCES = 300.0, 3000.0
#: A density that falls like a smaller power of |x| has no variance: three, and a margin for other terms so
#: far out.
MIN_TAIL_POWER = 3.05


@dataclass(frozen=True)
class WeightedPoints:
    """Whitened points (N, D) whose weights (N,), which sum to one, make them a sample of the posterior."""

    weights: Tensor
    white: Tensor


def sample_weighted_points(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> WeightedPoints | None:
    """Weighted points of the posterior around whitened draws (S, D); None if their weights cannot be trusted."""
    if not takes_weighted_points(target.problem.traits):
        return None
    points = weighted_points(target.evaluations, POINTS_A_ROUND, BATCHES[-1])
    first = _first(target, draws, from_prior, generator).shared_out(points)
    sampler = AdaptiveImportanceSampler.start(SETTINGS, first, generator)
    for taken in range(1, MAX_ROUNDS + 1):
        sampler = sampler.tell(target.values(sampler.trial))
        if sampler.all_impossible:
            return None
        if taken == MAX_ROUNDS or sampler.is_enough():
            break
        sampler = sampler.draw(sampler.refit(FIT_ON, generator).shared_out(points), generator)
    found = sampler.smoothed
    if not (found.pareto_k <= SETTINGS.longest_tail and found.effective >= MIN_EFFECTIVE_DRAWS):
        return None
    # On a site's own scale, points with negligible weights may be extremely far away.
    some = sampler.log_weights > sampler.log_weights.max() - NEGLIGIBLE_NATS
    return WeightedPoints(found.weights[some] / found.weights[some].sum(), sampler.points[some])


def _first(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """The mixture that the first points are drawn from, of parts in equal shares."""
    parts = [_around_centre(target, NEAR_WIDTHS), _fit(draws, generator)]
    if target.few is None:
        found, largest = from_prior(), MAX_WIDTH
        if found is not None:
            prior = target.white(found)
            parts.append(_fit(prior, generator))
            largest = min(float(prior.std(0).max()), largest)
        if widths := _far_widths(largest):
            parts.append(_around_centre(target, widths))
    return Mixture(*(torch.cat(same) for same in zip(*parts, strict=True)))


def _fit(points: Tensor, generator: torch.Generator) -> Mixture:
    """A mixture fitted to points (S, D) of equal weight."""
    even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    return fitted(points, even, COMPONENTS, FIT_STEPS, generator)


def _far_widths(largest: float) -> list[float]:
    """Widths beyond `NEAR_WIDTHS`, up to `largest`."""
    widths, width = list[float](), NEAR_WIDTHS[-1] ** 2
    while width <= largest:
        widths.append(width)
        width *= NEAR_WIDTHS[-1]
    return widths


def _around_centre(target: Target, widths: Sequence[float]) -> Mixture:
    """A mixture around the draws' centre, of components with these widths in equal shares."""
    eye, count = torch.eye(target.problem.dim, dtype=torch.float64), len(widths)
    scales = torch.tensor(widths, dtype=torch.float64)
    return Mixture(torch.full_like(scales, 1 / count), eye.new_zeros(count, len(eye)), scales[:, None, None] * eye)


def moments_by_weights(target: Target, quantities: Quantities, draws: Tensor, found: WeightedPoints) -> Moments:
    """The posterior's moments of `quantities` by weighted points, relative to the result's draws (S, D)."""
    points = quantities(target.model(found.white))
    return moments_of_weighted_points(found.weights, points, quantities(draws.double()), target.problem.dim)


def undetermined_sd_findings(
    target: Target, quantities: Quantities, draws: Tensor, points_of: Callable[[], WeightedPoints | None]
) -> list[Finding]:
    """One finding on the longest tail that leaves an SD undetermined by right draws (S, D), or none."""
    long = kurtosis(quantities(draws.double())) > LONG_TAIL_KURTOSIS
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
    untold |= (
        long
        & (longest > LONG_TAIL_KURTOSIS)
        & torch.tensor([_tail(weights * terms) > LARGEST_PARETO_K for terms in away.T])
    )
    if not bool(untold.any()):
        return []
    number = int(torch.where(untold, longest, 0.0).argmax())
    name = quantities.labels[number]
    return [sentences.draws_do_not_tell(parameter=name, kurtosis=float(longest[number]), draws=len(draws))]


def _without_variance(target: Target, draws: Tensor, long: Tensor) -> list[int]:
    """Entries of the flat vector whose conditional density, given the others, falls like |x|^-3 or more slowly."""
    # The tail of the draws does not show that: algorithms reach Cauchy's only as far as their steps or weights go.
    z = draws[evenly(len(draws), NUM_DRAWS)].double()
    found = []
    for number in long[: z.shape[1]].nonzero()[:, 0].tolist():
        column = draws[:, number].double()
        low, middle, high = column.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        powers = []
        for side in (-1, 1):
            at = []
            for far in TAIL_DISTANCES:
                moved = z.clone()
                moved[:, number] = middle + side * far * (high - low)
                at.append(target.values(target.white(moved)))
            fall = (at[0] - at[1]) / math.log(TAIL_DISTANCES[1] / TAIL_DISTANCES[0])
            powers.append(float(fall.nan_to_num(nan=math.inf).median()))
        if min(powers) < MIN_TAIL_POWER:
            found.append(number)
    return found


def _tail(terms: Tensor) -> float:
    """Pareto's k of the tail of positive numbers (N,)."""
    return smoothed(terms.clamp_min(torch.finfo(terms.dtype).tiny).log()).pareto_k


def infinite_variance_findings(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on the deterministic site outside the plate with the longest tail without a variance, or none."""
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    if not names or len(draws) < MIN_TAIL_DRAWS:
        return []
    found = problem.constrain(draws.to(problem.dtype), problem.fewest_rows)
    longest, said = LARGEST_PARETO_K, ""
    for name in names:
        for number, values in enumerate(found[name].reshape(len(draws), -1).double().T):
            away = (values - values.median()).abs()
            if not bool(away.isfinite().all()) or not float(away.median()) > 0:
                continue
            if (k := _tail(away)) > longest:
                longest, said = k, problem.entry_of(problem.reported[name], number)
    if not said:
        return []
    return [sentences.no_variance_of_draws(parameter=said, pareto_k=longest)]


def moments_of_weighted_points(weights: Tensor, points: Tensor, draws: Tensor, dim: int) -> Moments:
    """The posterior's moments by weighted points (N, F), relative to those of draws (S, F).

    A number is not judged (its standard errors are zero) if it is not finite somewhere, or if its variance or its tail
    cannot be determined. The first `dim` numbers are unconstrained.
    """
    centre, scale = draws.mean(0), draws.std(0)
    usable = points.isfinite().all(0) & centre.isfinite() & (scale > 0) & scale.isfinite()
    y = torch.where(usable, (points - centre) / scale, 0.0)
    mean = weights @ y
    away = (y - mean).square()
    variance = weights @ away
    squares = weights.square()
    # The effective number of terms is (Σ w a)² / Σ (w a)².
    usable &= variance.square() > MIN_TERMS_OF_VARIANCE * (squares @ away.square())
    variance = torch.where(usable, variance, 1.0)
    left, come = kurtosis(draws), (weights @ away.square()) / variance.square()
    # The weighted points show how long the posterior's tail is, also on a site's own scale.
    own = torch.arange(len(come)) >= dim
    mean_error = (squares @ away).sqrt() / variance.sqrt()
    log_error = (squares @ (away - variance).square()).sqrt() / (2 * variance)
    chance = ((come - 1) / len(draws)).sqrt() / 2  # of as many exact draws
    lacking = variance.log() / 2 > STANDARD_ERRORS * torch.hypot(chance, log_error)
    enough = (STANDARD_ERRORS * chance <= math.log(SD_MATTERS)) | ((chance <= math.log(SD_MATTERS)) & lacking)
    usable &= torch.where(own, enough, judgeable_sds(left, come, dim, CHAINS))
    figures = mean / variance.sqrt(), mean_error, variance.log() / 2, log_error
    mean, mean_error, log_sd, log_error = (torch.where(usable, figure, 0.0) for figure in figures)
    return Moments(mean, mean_error, log_sd, log_error, by="weights")
