"""Weighted points of the posterior, drawn around a result's draws and wherever else it may have mass.

They come from adaptive multiple importance sampling (`ops.adaptive_importance`), driven by a loop.

**The first points** come in equal shares from mixtures fitted to the draws and to draws of the prior, and from around
the draws' centre, with the widths `NEAR_WIDTHS` and with far larger ones, up to the prior's. So there are points in a
slab around a spike; a search for modes climbs from there to the spike, and chains from the spike do not enter the slab.
If few rows stand for all (`few_rows`), they do so near the draws only, and points are drawn there only.

**The end.** No points are added once `SETTINGS` are met, for means and for variances, or after `ROUNDS` rounds. If they
are then worth fewer than `MIN_EFFECTIVE_POINTS`, as in many dimensions, none are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.target import BATCHES, Target
from pyro_fed.ops.adaptive_importance import COMPONENTS, FIT_STEPS, NOTHING, AdaptiveImportanceSampler, AdaptiveSettings
from pyro_fed.ops.student_mixtures import Mixture, fitted
from pyro_fed.policy.audit import MOST_DRAWS, takes_weighted_points, weighted_points

#: The most rounds. A round has as many points as are computed together, or fewer where they cost much.
ROUNDS = 6
#: The fewest points of a round, of which each of the first mixture's parts has some.
FEWEST_POINTS = 512
#: Widths of the points around the draws, in the draws' own. Beyond these, widths are powers of the last one, up to the
#: prior's SD, and at most `LARGEST_WIDTH`.
NEAR_WIDTHS, LARGEST_WIDTH = (1.0, 1.5, 3.0), 1000.0
#: No points are added once their effective number is this large, and the weights' tail can be trusted.
SETTINGS = AdaptiveSettings(enough=MOST_DRAWS, longest_tail=0.5, second_moments=True)
#: Fewer weighted points, or points worth fewer, do not show the posterior's means and SDs.
MIN_EFFECTIVE_POINTS = 400
#: Effective number of points for a fit.
FIT_ON = 5 * COMPONENTS


@dataclass(frozen=True)
class WeightedPoints:
    """Whitened points (N, D) whose weights (N,), which sum to one, make them a sample of the posterior."""

    weights: Tensor
    white: Tensor


def weighed_points(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> WeightedPoints | None:
    """Weighted points of the posterior around whitened draws (S, D); None if their weights cannot be trusted."""
    if not takes_weighted_points(target.problem.traits):
        return None
    points = weighted_points(target.evaluations, FEWEST_POINTS, BATCHES[-1])
    first = _first(target, draws, from_prior, generator).shared_out(points)
    sampler = AdaptiveImportanceSampler.start(SETTINGS, first, generator)
    for taken in range(1, ROUNDS + 1):
        sampler = sampler.tell(target.values(sampler.trial))
        if sampler.all_impossible:
            return None
        if taken == ROUNDS or sampler.is_enough():
            break
        sampler = sampler.draw(sampler.refit(FIT_ON, generator).shared_out(points), generator)
    found = sampler.smoothed
    usable = found.pareto_k <= SETTINGS.longest_tail and found.effective >= MIN_EFFECTIVE_POINTS
    return _some(sampler) if usable else None


def _some(sampler: AdaptiveImportanceSampler) -> WeightedPoints:
    """The points whose weights are not negligible: on a site's own scale, the others may be extremely far away."""
    weights, logs = sampler.smoothed.weights, sampler.log_weights
    some = logs > logs.max() - NOTHING
    return WeightedPoints(weights[some] / weights[some].sum(), sampler.points[some])


def _first(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """The mixture that the first points are drawn from, of parts in equal shares."""
    parts = [_around_centre(target, NEAR_WIDTHS), _fit(draws, generator)]
    if target.few is None:
        found, largest = from_prior(), LARGEST_WIDTH
        if found is not None:
            prior = target.white(found)
            parts.append(_fit(prior, generator))
            largest = min(largest, float(prior.std(0).max()))
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
