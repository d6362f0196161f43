"""Weighted points of the posterior (a census): drawn around a result's draws and wherever else it may have mass.

    w_s ∝ p(z_s) / Σ_j n_j t_5(z_s; m_j, S_j),    n_j points drawn of each Student's t so far

**The first points** come from three places: a mixture that is fitted to the draws; their neighbourhood, with the widths
`NEAR` and far larger ones, up to the prior's; and a mixture that is fitted to draws of the prior. So there are points
in a slab around a spike, from which a search for modes climbs to the spike, and which chains from the spike do not
enter.

**The next points.** A mixture is fitted to all weighted points; those far out count more, since they dominate the
variances. New points are drawn from it, and all points are weighted anew (Cornuet et al. 2012, *Adaptive multiple
importance sampling*). This ends when the points are worth `ENOUGH` equally weighted ones and the tail of their weights
can be trusted (Pareto's k, Vehtari et al.). The same is asked of the terms of the variances, w (z - m)². If the points
are worth less than `WORTH` after `ROUNDS` rounds, as in many dimensions, there is no census.

Where few rows stand for all (`few_rows`), they do so near the draws only. Then the points are drawn there only.

Source: Owen & Zhou (2000), *Safe and effective importance sampling*, for mixtures; Vehtari et al. (2024) for k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.target import LARGE_BATCH, Target
from pyro_fed.ops.importance import flattened, smoothed
from pyro_fed.ops.student_mixtures import Mixture, fitted

#: Points of a round, as many as are computed together; and the most rounds.
POINTS, ROUNDS = LARGE_BATCH, 6
#: Widths of the points around the draws, in the draws' own. Beyond these, each width is `FACTOR` times the one before,
#: up to the prior's SD, and at most `FARTHEST`.
NEAR, FACTOR, FARTHEST = (1.0, 1.5, 3.0), 3.0, 1000.0
#: Shares of the first points: around the draws, farther out, and from the prior.
AROUND, FARTHER, PRIOR = 0.5, 0.25, 0.25
#: Degrees of freedom of each component; components of a fit, its steps, and the fewest points for each component.
FREEDOM, COMPONENTS, STEPS, FEWEST = 5, 8, 10, 5
#: With more parameters than this, importance weights are worth too little.
LARGEST_DIM = 8
#: Weighted points are used if they are worth at least `WORTH` equally weighted ones; none are added once they are worth
#: `ENOUGH`; and Pareto's k may be at most `LONGEST_TAIL`.
WORTH, ENOUGH, LONGEST_TAIL = 400, 1000, 0.5
#: A weight whose logarithm is so much less than the largest one counts as zero.
NOTHING = 100.0
#: The most densities of rows that may be computed, about two seconds.
DENSITIES = 200_000_000


@dataclass(frozen=True)
class Weighed:
    """Points whose weights make them a sample of the posterior.

    Args:
        weights: the points' weights (N,), which sum to one.
        white: the points, in coordinates that whiten the result's draws (N, D).
    """

    weights: Tensor
    white: Tensor


def weighed_points(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Weighed | None:
    """Weighted points of the posterior.

    Args:
        target: the posterior, whitened by the draws.
        draws: w (S, D), whitened.
        from_prior: gives draws of the prior in the model's coordinates (M, D), or None where it is improper.
        generator: source of randomness.

    Returns:
        None if the model is looped over or has too many parameters, or if the weights cannot be trusted.
    """
    problem = target.problem
    if problem.looped or problem.dim > LARGEST_DIM:
        return None
    rounds = 1 if target.evaluations * POINTS * ROUNDS > DENSITIES else ROUNDS
    drawn = _first(target, draws, from_prior, generator).shared_out(POINTS).used()
    every, white, value = drawn, target.centre.new_zeros(0, problem.dim), target.centre.new_zeros(0)
    for taken in range(1, rounds + 1):
        fresh = drawn.draws(FREEDOM, generator)
        white, value = torch.cat([white, fresh]), torch.cat([value, target.values(fresh)])
        log_weights = value - every.log_density(white, FREEDOM)
        if not bool(log_weights.isfinite().any()):
            return None
        found = smoothed(log_weights.clamp_min(float(log_weights.max()) - NOTHING))
        trusted = found.pareto_k <= LONGEST_TAIL
        enough = trusted and found.effective >= ENOUGH
        if taken == rounds or (enough and _longest_of_squares(found.weights, white) <= LONGEST_TAIL):
            return _kept(found.weights, white, log_weights) if trusted and found.effective >= WORTH else None
        flat = flattened(log_weights + white.square().mean(1).log1p(), FEWEST * COMPONENTS)
        drawn = fitted(white, flat, COMPONENTS, STEPS, generator).shared_out(POINTS).used()
        every = every.joined(drawn)
    return None


def _longest_of_squares(weights: Tensor, white: Tensor) -> float:
    """Pareto's k of weights times squared distances, whose mean is a variance: the largest over coordinates."""
    away = (white - weights @ white).square()
    terms = (weights.unsqueeze(1) * away).clamp_min(torch.finfo(away.dtype).tiny).log()
    return max(smoothed(term.clamp_min(float(term.max()) - NOTHING)).pareto_k for term in terms.T)


def _kept(weights: Tensor, white: Tensor, log_weights: Tensor) -> Weighed:
    """The points whose weights are not negligible: on a site's own scale, the others may be extremely far away."""
    some = log_weights > log_weights.max() - NOTHING
    return Weighed(weights[some] / weights[some].sum(), white[some])


def _first(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """The mixture that the first points are drawn from; its counts are shares."""
    near = _round(target, torch.tensor(NEAR, dtype=torch.float64))
    around = _joined((0.5, near), (0.5, _fit(draws, generator)))
    if target.few is not None:
        return around
    found = from_prior()
    if found is None:
        return _joined((AROUND, around), (FARTHER, _round(target, _rungs(FARTHEST))))
    prior = target.white(found)
    rungs = _rungs(float(prior.std(0).max()))
    parts = [(AROUND, around), (PRIOR, _fit(prior, generator))]
    return _joined(*parts, *([(FARTHER, _round(target, rungs))] if len(rungs) else []))


def _fit(points: Tensor, generator: torch.Generator) -> Mixture:
    """A mixture fitted to points (S, D) of equal weight."""
    even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    return fitted(points, even, COMPONENTS, STEPS, generator)


def _rungs(most: float) -> Tensor:
    """Widths beyond `NEAR`, each `FACTOR` times the one before, up to `most`."""
    widths = [NEAR[-1] * FACTOR]
    while widths[-1] * FACTOR <= min(most, FARTHEST):
        widths.append(widths[-1] * FACTOR)
    return torch.tensor([width for width in widths if width <= most], dtype=torch.float64)


def _round(target: Target, widths: Tensor) -> Mixture:
    """A mixture around the draws' centre, of components with these widths in equal shares."""
    eye = torch.eye(target.problem.dim, dtype=torch.float64)
    return Mixture(
        torch.full_like(widths, 1 / len(widths)), eye.new_zeros(len(widths), len(eye)), widths[:, None, None] * eye
    )


def _joined(*parts: tuple[float, Mixture]) -> Mixture:
    """Mixtures with their shares."""
    return Mixture(
        *(torch.cat(same) for same in zip(*(m._replace(counts=share * m.counts) for share, m in parts), strict=True))
    )
