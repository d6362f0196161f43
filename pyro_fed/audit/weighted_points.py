"""Weighted points of the posterior, drawn around a result's draws and wherever else it may have mass.

They come from adaptive multiple importance sampling (`ops.adaptive_importance`), driven by a loop.

**The first points** come from three places: a mixture that is fitted to the draws; their neighbourhood, with the widths
`NEAR_WIDTHS` and far larger ones, up to the prior's; and a mixture that is fitted to draws of the prior. So there are
points in a slab around a spike; a search for modes from there climbs to the spike, and chains from the spike do not
enter the slab.

**The end.** No points are added once `SETTINGS` are met, for means and for variances, or after `ROUNDS` rounds. If
their effective number is then below `LEAST_EFFECTIVE_POINTS`, as in many dimensions, none are returned.

If few rows stand for all (`few_rows`), they do so near the draws only. Then the points are drawn there only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.target import BATCHES, Target
from pyro_fed.ops.adaptive_importance import COMPONENTS, FIT_STEPS, NOTHING, AdaptiveImportanceSampler, AdaptiveSettings
from pyro_fed.ops.student import Mixture, fitted
from pyro_fed.policy.audit import takes_weighted_points, weighted_points

#: The most rounds. A round has as many points as are computed together, or fewer where they cost much.
ROUNDS = 6
#: The fewest points of a round, of which each of the first mixture's parts has some.
FEWEST_POINTS = 512
#: Widths of the points around the draws, in the draws' own. Beyond these, each width is `FACTOR` times the one before,
#: up to the prior's SD, and at most `LARGEST_WIDTH`.
NEAR_WIDTHS, FACTOR, LARGEST_WIDTH = (1.0, 1.5, 3.0), 3.0, 1000.0
#: Share of the first points around the draws; the others are farther out and from the prior, half of them each.
AROUND_SHARE = 0.5
#: No points are added once their effective number is this large, and the weights' tail can be trusted.
SETTINGS = AdaptiveSettings(enough=1000, longest_tail=0.5, second_moments=True)
#: Points are used if their effective number is at least this.
LEAST_EFFECTIVE_POINTS = 400
#: Effective number of points for a fit.
FIT_ON = 5 * COMPONENTS


@dataclass(frozen=True)
class WeightedPoints:
    """Points whose weights make them a sample of the posterior.

    Args:
        weights: the points' weights (N,), which sum to one.
        white: the points, in coordinates that whiten the result's draws (N, D).
    """

    weights: Tensor
    white: Tensor


def weighed_points(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> WeightedPoints | None:
    """Weighted points of the posterior; None if the model is looped or too large, or the weights cannot be trusted.

    Args:
        target: the posterior, whitened by the draws.
        draws: w (S, D), whitened.
        from_prior: gives draws of the prior in the model's coordinates (M, D), or None if it is improper.
        generator: source of randomness.
    """
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
    usable = found.pareto_k <= SETTINGS.longest_tail and found.effective >= LEAST_EFFECTIVE_POINTS
    return _some(sampler) if usable else None


def _some(sampler: AdaptiveImportanceSampler) -> WeightedPoints:
    """The points whose weights are not negligible: on a site's own scale, the others may be extremely far away."""
    weights, logs = sampler.smoothed.weights, sampler.log_weights
    some = logs > logs.max() - NOTHING
    return WeightedPoints(weights[some] / weights[some].sum(), sampler.points[some])


def _first(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """The mixture that the first points are drawn from; its counts are shares."""
    near = _round(target, torch.tensor(NEAR_WIDTHS, dtype=torch.float64))
    around = _join_mixtures((0.5, near), (0.5, _fit(draws, generator)))
    if target.few is not None:
        return around
    found, farther = from_prior(), (1 - AROUND_SHARE) / 2
    if found is None:
        return _join_mixtures((AROUND_SHARE, around), (farther, _round(target, _rungs(LARGEST_WIDTH))))
    prior = target.white(found)
    rungs = _rungs(float(prior.std(0).max()))
    parts = [(AROUND_SHARE, around), (farther, _fit(prior, generator))]
    return _join_mixtures(*parts, *([(farther, _round(target, rungs))] if len(rungs) else []))


def _fit(points: Tensor, generator: torch.Generator) -> Mixture:
    """A mixture fitted to points (S, D) of equal weight."""
    even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    return fitted(points, even, COMPONENTS, FIT_STEPS, generator)


def _rungs(most: float) -> Tensor:
    """Widths beyond `NEAR_WIDTHS`, each `FACTOR` times the one before, up to `most`."""
    widths = [NEAR_WIDTHS[-1] * FACTOR]
    while widths[-1] * FACTOR <= min(most, LARGEST_WIDTH):
        widths.append(widths[-1] * FACTOR)
    return torch.tensor([width for width in widths if width <= most], dtype=torch.float64)


def _round(target: Target, widths: Tensor) -> Mixture:
    """A mixture around the draws' centre, of components with these widths in equal shares."""
    eye = torch.eye(target.problem.dim, dtype=torch.float64)
    return Mixture(
        torch.full_like(widths, 1 / len(widths)), eye.new_zeros(len(widths), len(eye)), widths[:, None, None] * eye
    )


def _join_mixtures(*parts: tuple[float, Mixture]) -> Mixture:
    """Mixtures with their shares."""
    return Mixture(
        *(torch.cat(same) for same in zip(*(m._replace(counts=share * m.counts) for share, m in parts), strict=True))
    )
