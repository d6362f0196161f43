"""Weighted points of the posterior, from a result's draws and from wherever else it may have mass.

    w_s ∝ p(z_s) / Σ_j n_j t_5(z_s; m_j, S_j),    n_j points drawn of each Student's t so far

The first points are of a fit to the draws; around them, `NEAR` times as wide as they, and far wider, up to the
prior's width; and of a fit to draws of the prior. Where a search for modes would climb from a slab to the spike on top
of it, and chains from the spike never leave it, some of these points are in the slab. A mixture is fitted to all
weighted points, those far out for more, as they make the variances; the next ones are drawn from it, and all are
weighed anew (Cornuet et al. 2012, *Adaptive multiple importance sampling*), until they are worth `ENOUGH` with a tail
that can be trusted, which what is averaged has to have too (Vehtari et al.): shares of the variances, w (z - m)².
Where they are not worth `WORTH` after `ROUNDS`, as in many dimensions, they say nothing.

Rows that stand for all do so around the draws alone: where these take the place of all rows, so do the points.

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

#: Points of a round: as many as are computed together; and rounds at most.
POINTS, ROUNDS = LARGE_BATCH, 6
#: How much wider than the draws points around them are, and the factor between those that are farther, up to the
#: prior's SD, and to so many times the draws'.
NEAR, FACTOR, FARTHEST = (1.0, 1.5, 3.0), 3.0, 1000.0
#: Shares of the first points: around the draws, farther, and of the prior.
AROUND, FARTHER, PRIOR = 0.5, 0.25, 0.25
#: Degrees of freedom of each; components of a fit, its steps, and points a component that it is to rest on.
FREEDOM, COMPONENTS, STEPS, FEWEST = 5, 8, 10, 5
#: Parameters from which on such weights are worth too little to be looked at.
LARGEST_DIM = 8
#: Equal points that weights have to be worth to say something, so many that no more are drawn, and their longest tail.
WORTH, ENOUGH, LONGEST_TAIL = 400, 1000, 0.5
#: So much less in log weight is none.
NOTHING = 100.0
#: Densities of rows that may be computed: about two seconds.
DENSITIES = 200_000_000


@dataclass(frozen=True)
class Weighed:
    """Points that stand for the posterior by their weights.

    Args:
        weights: (N,), which sum to one.
        white: (N, D), in coordinates that whiten the result's draws.
    """

    weights: Tensor
    white: Tensor


def weighed_points(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Weighed | None:
    """Weighted points; None where their weights cannot be trusted, or would take too long.

    Args:
        target: the posterior, whitened by the draws.
        draws: w (S, D), whitened.
        from_prior: gives draws of the prior (M, D), the model's coordinates; None where it is improper.
        generator: source of randomness.
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
    """Pareto's k of what makes the variances: the largest over coordinates of weights times squared distances."""
    away = (white - weights @ white).square()
    terms = (weights.unsqueeze(1) * away).clamp_min(torch.finfo(away.dtype).tiny).log()
    return max(smoothed(term.clamp_min(float(term.max()) - NOTHING)).pareto_k for term in terms.T)


def _kept(weights: Tensor, white: Tensor, log_weights: Tensor) -> Weighed:
    """The points that have a weight: on a site's own scale what has next to none may be far beyond all others."""
    some = log_weights > log_weights.max() - NOTHING
    return Weighed(weights[some] / weights[some].sum(), white[some])


def _first(
    target: Target, draws: Tensor, from_prior: Callable[[], Tensor | None], generator: torch.Generator
) -> Mixture:
    """Where the first points are drawn, its counts being shares."""
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
    """A mixture for points (S, D) that count alike."""
    even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
    return fitted(points, even, COMPONENTS, STEPS, generator)


def _rungs(most: float) -> Tensor:
    """Widths beyond those near, up to one that is not beyond `most`."""
    widths = [NEAR[-1] * FACTOR]
    while widths[-1] * FACTOR <= min(most, FARTHEST):
        widths.append(widths[-1] * FACTOR)
    return torch.tensor([width for width in widths if width <= most], dtype=torch.float64)


def _round(target: Target, widths: Tensor) -> Mixture:
    """Around the draws, so many times as wide, in equal shares."""
    eye = torch.eye(target.problem.dim, dtype=torch.float64)
    return Mixture(
        torch.full_like(widths, 1 / len(widths)), eye.new_zeros(len(widths), len(eye)), widths[:, None, None] * eye
    )


def _joined(*parts: tuple[float, Mixture]) -> Mixture:
    """Mixtures with their shares."""
    return Mixture(
        *(torch.cat(same) for same in zip(*(m._replace(counts=share * m.counts) for share, m in parts), strict=True))
    )
