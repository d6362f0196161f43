"""Weighted points of the posterior, around a result's draws and wherever else it may have mass; tails, slabs and modes.

They come from adaptive multiple importance sampling (`ops.adaptive_importance`), driven by a loop.

**The first points** come in equal shares from mixtures fitted to the draws and to draws of the prior, and from
components around the draws' centre, with the widths `NEAR_WIDTHS` and with far larger ones, up to the prior's. So some
points lie in a slab around a spike. A search for modes would climb from the slab to the spike, and chains from the
spike do not enter the slab. A few rows replace all rows only near the draws, so that points are then drawn only there.

**The end.** Points are added until `SETTINGS` are met, for means and for variances, or for `MAX_ROUNDS` rounds. If
their effective sample size is then below `MIN_EFFECTIVE_DRAWS`, as in many dimensions, none are returned.

**Use.** Chains that begin at a result's draws move slowly into a tail that the draws lack, and seem to have converged
before they arrive. Weighted points have no such memory. In few dimensions they can be trusted, except for a number
whose variance depends on few points. An error that they find overrules chains that find none.

Deterministic sites are judged by the tails of their own draws: they may have an infinite variance although no latent
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.audit.moments import LONG_TAIL_KURTOSIS, Moments, Quantities, judgeable_sds, kurtosis
from pyro_fed.audit.target import BATCHES, Target
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS, SD_MATTERS, STANDARD_ERRORS, Limits
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

#: Largest number of rounds. A round has as many points as are computed together, or fewer if they are expensive.
MAX_ROUNDS = 6
#: Smallest number of points of a round. It leaves some to each component of the first mixture.
POINTS_A_ROUND = 512
#: Widths of the components around the draws, in the draws' SDs. Larger widths are powers of the last one, up to the
#: prior's SD, and at most `MAX_WIDTH`.
NEAR_WIDTHS, MAX_WIDTH = (1.0, 1.5, 3.0), 1000.0
#: Points are enough at this effective sample size, if the weights' tail can be trusted.
SETTINGS = AdaptiveSettings(enough=SAMPLED_ENTRIES, longest_tail=0.5, second_moments=True)
#: Effective sample size for a fit.
FIT_ON = 5 * COMPONENTS
#: Smallest effective sample size for the terms of a number's variance: n terms leave its log SD an error of 1 / (2 √n).
MIN_TERMS_OF_VARIANCE = (STANDARD_ERRORS / (2 * math.log(SD_MATTERS))) ** 2
#: Smallest number of draws that show the shape of a tail: a tenth of them lie in it, and k has a standard error of 0.2.
MIN_TAIL_DRAWS = 800
#: Distances from the median, in interquartile ranges, between which the fall of a density is measured.
TAIL_DISTANCES = 300.0, 3000.0
#: A density that falls like a smaller power of |x| has no variance. The power is three, plus a margin for other terms.
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
    first = _first_mixture(target, draws, from_prior, generator).shared_out(points)
    sampler = AdaptiveImportanceSampler.start(SETTINGS, first, generator)
    for rounds in range(1, MAX_ROUNDS + 1):
        sampler = sampler.tell(target.values(sampler.trial))
        if sampler.all_impossible:
            return None
        if rounds == MAX_ROUNDS or sampler.is_enough():
            break
        sampler = sampler.draw(sampler.refit(FIT_ON, generator).shared_out(points), generator)
    weights = sampler.smoothed
    if not (weights.pareto_k <= SETTINGS.longest_tail and weights.effective >= MIN_EFFECTIVE_DRAWS):
        return None
    # Points with negligible weights are dropped: on a site's own scale they may be extremely far away.
    heavy = sampler.log_weights > sampler.log_weights.max() - NEGLIGIBLE_NATS
    return WeightedPoints(weights.weights[heavy] / weights.weights[heavy].sum(), sampler.points[heavy])


def _first_mixture(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """The proposal of the first points, a mixture of parts in equal shares."""
    parts = [_around_centre(target, NEAR_WIDTHS), _fit(draws, generator)]
    if target.few is None:
        prior_draws, largest = from_prior(), MAX_WIDTH
        if prior_draws is not None:
            prior = target.white(prior_draws)
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


def moments_by_weights(target: Target, quantities: Quantities, draws: Tensor, sample: WeightedPoints) -> Moments:
    """The posterior's moments of `quantities` by weighted points, relative to the result's draws (S, D)."""
    points = quantities(target.model(sample.white))
    return moments_of_weighted_points(sample.weights, points, quantities(draws.double()), target.problem.dim)


def undetermined_sd_findings(
    target: Target,
    quantities: Quantities,
    draws: Tensor,
    points_of: Callable[[], WeightedPoints | None],
    aim: Limits | None = None,
) -> list[Finding]:
    """One finding on the longest tail from which correct draws (S, D) do not determine an SD, or none.

    With an aim also on one from which as many correct draws may miss it by chance.
    """
    of_draws = kurtosis(quantities(draws.double()))
    long = of_draws > LONG_TAIL_KURTOSIS
    if not bool(long.any()):
        return []
    if infinite := without_variance(target, draws, long):
        return [sentences.no_variance(parameter=quantities.labels[infinite[0]])]
    if (sample := points_of()) is None:
        return _chance_findings(torch.where(long, of_draws, 0.0), quantities, draws, aim)
    _, longest, undetermined = undetermined_sds(target, quantities, draws, sample)
    if not bool(undetermined.any()):
        # A few draws show too small a kurtosis, and so do points that do not reach a tail.
        return _chance_findings(torch.where(long, torch.maximum(of_draws, longest), 0.0), quantities, draws, aim)
    number = int(torch.where(undetermined, longest, 0.0).argmax())
    name = quantities.labels[number]
    return [sentences.draws_do_not_tell(parameter=name, kurtosis=float(longest[number]), draws=len(draws))]


def undetermined_sds(
    target: Target, quantities: Quantities, draws: Tensor, sample: WeightedPoints
) -> tuple[Moments, Tensor, Tensor]:
    """The moments by weighted points, the kurtosis (F,), and which SDs (F,) as many correct draws do not determine."""
    weights, points, of_draws = sample.weights, quantities(target.model(sample.white)), quantities(draws.double())
    moments, kurtoses = _determined_moments(weights, points, of_draws)
    away = (points - weights @ points).square()
    heavy = torch.tensor([_tail_shape(weights * terms) > LARGEST_PARETO_K for terms in away.T])
    long = torch.minimum(kurtosis(of_draws), kurtoses) > LONG_TAIL_KURTOSIS
    undetermined = kurtoses > 1 + len(draws) * (2 * math.log(SD_MATTERS)) ** 2
    return moments, kurtoses, undetermined | long & heavy


def _chance_findings(kurtoses: Tensor, quantities: Quantities, draws: Tensor, aim: Limits | None) -> list[Finding]:
    """One finding on the longest tail, if the SD of correct draws may miss an aim by chance, or none."""
    number = int(kurtoses.argmax())
    longest = float(kurtoses[number])
    if aim is None or longest <= 1:
        return []
    # The log SD of n draws has the standard error sqrt((k - 1) / n) / 2.
    error = math.sqrt((longest - 1) / _effective_draws_for_sd(quantities, draws, number)) / 2
    limit = math.log(aim.sd_factor)
    if STANDARD_ERRORS * error <= limit:
        return []
    needed = math.ceil((longest - 1) * (STANDARD_ERRORS / (2 * limit)) ** 2)
    return [
        sentences.sd_by_chance(
            parameter=quantities.labels[number],
            kurtosis=longest,
            draws=len(draws),
            log_sd_error=error,
            needed=needed,
            sd_factor=aim.sd_factor,
        )
    ]


def _effective_draws_for_sd(quantities: Quantities, draws: Tensor, number: int) -> float:
    """How many draws without repetitions would determine the SD of a number as well; weights repeat draws."""
    different, repeats = draws.unique(dim=0, return_counts=True)
    shares, values = repeats.double() / len(draws), quantities(different.double())[:, number]
    excess = (values - shares @ values).square()
    excess = excess - shares @ excess
    return float((shares @ excess.square()) / (shares.square() @ excess.square()))


def without_variance(target: Target, draws: Tensor, long: Tensor) -> list[int]:
    """Entries of the flat vector whose conditional density, given the others, falls like |x|^-3 or more slowly."""
    # The tail of the draws does not show this: steps and weights reach only a part of a Cauchy tail.
    z = draws[evenly(len(draws), NUM_DRAWS)].double()
    entries = []
    for number in long[: z.shape[1]].nonzero()[:, 0].tolist():
        column = draws[:, number].double()
        low, middle, high = column.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        powers = []
        for side in (-1, 1):
            log_densities = []
            for distance in TAIL_DISTANCES:
                moved = z.clone()
                moved[:, number] = middle + side * distance * (high - low)
                log_densities.append(target.values(target.white(moved)))
            fall = (log_densities[0] - log_densities[1]) / math.log(TAIL_DISTANCES[1] / TAIL_DISTANCES[0])
            powers.append(float(fall.nan_to_num(nan=math.inf).median()))
        if min(powers) < MIN_TAIL_POWER:
            entries.append(number)
    return entries


def _tail_shape(terms: Tensor) -> float:
    """Pareto's k of the tail of positive numbers (N,)."""
    return smoothed(terms.clamp_min(torch.finfo(terms.dtype).tiny).log()).pareto_k


def infinite_variance_findings(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on the deterministic site outside the plate whose draws have no variance and the longest tail."""
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    if not names or len(draws) < MIN_TAIL_DRAWS:
        return []
    values_by_site = problem.constrain(draws.to(problem.dtype), problem.fewest_rows)
    largest_k, entry = LARGEST_PARETO_K, ""
    for name in names:
        for number, values in enumerate(values_by_site[name].reshape(len(draws), -1).double().T):
            distances = (values - values.median()).abs()
            if not bool(distances.isfinite().all()) or not float(distances.median()) > 0:
                continue
            if (k := _tail_shape(distances)) > largest_k:
                largest_k, entry = k, problem.entry_of(problem.reported[name], number)
    if not entry:
        return []
    return [sentences.no_variance_of_draws(parameter=entry, pareto_k=largest_k)]


def moments_of_weighted_points(weights: Tensor, points: Tensor, draws: Tensor, dim: int) -> Moments:
    """The posterior's moments by weighted points (N, F), relative to those of draws (S, F).

    A number is not judged (its standard errors are zero) if it is not finite somewhere, or if its variance or its tail
    cannot be determined. The first `dim` numbers are unconstrained.
    """
    found, posterior_kurtosis = _determined_moments(weights, points, draws)
    own_scale = torch.arange(len(posterior_kurtosis)) >= dim
    # The weighted points show how long the posterior's tail is, also on a site's own scale.
    chance = ((posterior_kurtosis - 1) / len(draws)).sqrt() / 2  # of as many exact draws
    too_narrow = found.log_sd > STANDARD_ERRORS * torch.hypot(chance, found.log_sd_error)
    judgeable = (STANDARD_ERRORS * chance <= math.log(SD_MATTERS)) | ((chance <= math.log(SD_MATTERS)) & too_narrow)
    usable = torch.where(own_scale, judgeable, judgeable_sds(kurtosis(draws), posterior_kurtosis, dim, CHAINS))
    return found.where(usable)


def moments_of_group(weights: Tensor, points: Tensor, draws: Tensor, dim: int) -> Moments:
    """The same of the few draws (S, F) of a group, whose chance is part of the errors, by weights of any sum (N,).

    Without points there nothing is judged: the group has no share of the mass.
    """
    if not float(weights.sum()) > 0:
        nothing = draws.new_zeros(draws.shape[1])
        return Moments(nothing, nothing, nothing, nothing, by="weights")
    found = moments_of_weighted_points(weights / weights.sum(), points, draws, dim)
    mean_error = found.mean_error.hypot(draws.new_tensor(len(draws) ** -0.5))
    log_sd_error = found.log_sd_error.hypot(((kurtosis(draws) - 1) / len(draws)).sqrt() / 2)
    return replace(found, mean_error=mean_error, log_sd_error=log_sd_error).where(found.mean_error > 0)


def _determined_moments(weights: Tensor, points: Tensor, draws: Tensor) -> tuple[Moments, Tensor]:
    """The moments of all numbers whose variance the points determine, and the posterior's kurtosis (F,) by them."""
    centre, scale = draws.mean(0), draws.std(0)
    usable = points.isfinite().all(0) & centre.isfinite() & (scale > 0) & scale.isfinite()
    y = torch.where(usable, (points - centre) / scale, 0.0)
    mean = weights @ y
    away = (y - mean).square()
    variance = weights @ away
    squares = weights.square()
    # The effective sample size of the terms w a is (Σ w a)² / Σ (w a)².
    usable &= variance.square() > MIN_TERMS_OF_VARIANCE * (squares @ away.square())
    kurtoses = ((weights @ away.square()) / variance.square()).nan_to_num(nan=0.0, posinf=0.0)
    variance = torch.where(usable, variance, 1.0)
    mean_error = (squares @ away).sqrt() / variance.sqrt()
    log_error = (squares @ (away - variance).square()).sqrt() / (2 * variance)
    found = Moments(mean / variance.sqrt(), mean_error, variance.log() / 2, log_error, by="weights")
    return found.where(usable), kurtoses
