"""Rows whose latents have several modes given θ: how these are found, and integrated each by its own nodes.

    ∫ exp f dx = Σ_j ∫ exp f w_j dx,    w_j = h_j / Σ_k h_k,    h_j = exp f(m_j) (1 + |C_j'(x - m_j)|² / 2p)^-p

w_j is the share of mode j in the sum of bumps that have each mode's height and curvature (a partition of unity), so
that exp f w_j is a single bump around m_j where modes are apart, and no mass counts twice where they overlap, or where
two ascents have ended at the same mode: each has half of it. Gaussian bumps, p = ∞, would cut the tails between modes
as with a knife, which nodes do not see; with a small p shares change over distances like those between the modes. As
the nodes, w_j is held fixed in derivatives. A draw takes a mode by its mass and a place around it, and is accepted by
exp f w_j, of which x alone is kept.

Whether there are several is seen when the model is read, and at the draws of a result, by ascents from a ladder of
places around the first mode, up to thousands of its SDs away in every direction.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol, Self

import torch
from torch import Tensor

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.latents.ascent import Centre, Climber, Rows, look

#: Rungs of the ladder, in SDs of the first mode, along each axis of its SDs and their diagonal, both ways.
RUNGS = tuple(2.0**k for k in range(13))
#: Newton steps from a rung, and how near its mode, in SDs, an ascent must have come to count.
STEPS, ARRIVED = 25, 0.1
#: Two ascents have come to one mode where they are within so many SDs, by either's curvature.
SAME = 0.5
#: p, see above.
POWER = 4.0
#: New modes of a row that are kept, those of the largest mass.
MOST_NEW = 3
#: Places besides zero from which modes are looked for, at most.
MOST_STARTS = 8
#: Rungs and steps where the model is run once for every place.
FEW_RUNGS, FEW_STEPS = (4.0, 64.0, 1024.0), 10


class Rule(Protocol):
    """What is taken of a `Quadrature`."""

    @property
    def starts(self) -> tuple[tuple[float, ...], ...] | None:
        """Places from which modes are looked for besides zero."""

    @property
    def node_tolerance(self) -> float:
        """The share of a row's mass from which on a mode is one."""

    def climber(self, steps: int) -> Climber:
        """How modes are climbed to."""

    def centres(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Centre:
        """The modes that it finds, (J, m, ...)."""

    def log_masses(self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre) -> tuple[Tensor, Tensor]:
        """Log prior (), and each mode's part of the log marginal likelihoods, (J, m)."""

    def from_places(self, starts: tuple[tuple[float, ...], ...]) -> Self:
        """The same with other `starts`."""


def search(problem: RowDensities, theta: Tensor, rows: Rows, known: Centre, climber: Climber) -> Centre:
    """The modes of the rows' latents at θ (D,): those that are known, and what ascents find beside them.

    Args:
        problem: the model's densities.
        theta: (D,).
        rows: row tensors, each (m, ...).
        known: (J, m, ...), the first of them those that the ladder stands around.
        climber: its settings.

    Returns:
        (J + `MOST_NEW`, m, ...); where fewer are new the first one again, with a `value` of -inf.
    """
    rungs, steps = (FEW_RUNGS, FEW_STEPS) if problem.looped else (RUNGS, STEPS)
    climber = replace(climber, steps=steps)
    first = known.at(0)
    height = torch.tensor(rungs, dtype=first.mode.dtype, device=first.mode.device)
    units = (height[:, None, None] * directions(problem.local_dim, first.mode)).flatten(0, 1)

    def climb(unit: Tensor) -> tuple[Centre, Tensor]:
        start = first.away(unit.expand_as(first.mode))
        end = climber.summit(climber.climbed(problem, theta, rows, start))
        curvature = look(problem, theta, rows, end.mode).curvature
        bowl = torch.linalg.eigvalsh(curvature.nan_to_num(nan=-1.0, posinf=-1.0, neginf=-1.0))[..., 0] > 0
        return end, bowl & (end.decrement <= ARRIVED) & end.value.isfinite()

    ends, good = problem.vmap(climb)(units)
    every = Centre(*(torch.cat(parts) for parts in zip(known, Centre(*ends), strict=True)))
    count = len(known.mode)
    kept = [torch.ones_like(good[0])] * count
    for i in range(len(units)):
        before = every.at(slice(0, count + i))
        end = every.at(count + i)
        apart = torch.maximum(before.distance(end.mode), end.distance(before.mode))
        seen = (torch.stack(kept) & ~(apart > SAME)).any(0)
        kept.append(good[i] & ~seen)
    mass = torch.where(torch.stack(kept[count:]), log_mass(Centre(*ends)), -torch.inf)
    best = mass.topk(MOST_NEW, 0)
    new = best.values > -torch.inf
    parts = []
    for old, part in zip(known, Centre(*ends), strict=True):
        index = _like(best.indices, part).expand(-1, *part.shape[1:])
        parts.append(torch.cat([old, torch.where(_like(new, part), part.gather(0, index), old[:1])]))
    found = Centre(*parts)
    return found._replace(value=torch.cat([known.value, torch.where(new, found.value[count:], -torch.inf)]))


def directions(dim: int, like: Tensor) -> Tensor:
    """The axes and their diagonal, both ways: (2 d + 2, d), or (2, 1)."""
    axes = torch.eye(dim, dtype=like.dtype, device=like.device)
    if dim > 1:
        axes = torch.cat([axes, torch.full_like(axes[:1], dim**-0.5)])
    return torch.cat([axes, -axes])


def log_mass(centre: Centre) -> Tensor:
    """Laplace's log masses of modes, without the constant that all have."""
    diagonal = centre.factor.diagonal(dim1=-2, dim2=-1)
    return centre.value - diagonal.log().sum(-1)


def alive(centre: Centre) -> Centre:
    """With the first mode in the place of ends (J, m) that are none: their ascents began where there is nothing."""
    lives = centre.value.isfinite() & centre.factor.flatten(2).isfinite().all(-1) & centre.mode.isfinite().all(-1)
    return Centre(*(torch.where(_like(lives, part), part, part[:1]) for part in centre))


def log_shares(centre: Centre, place: Tensor) -> Tensor:
    """log w_j of places (m, d): (J, m)."""
    height = centre.value - POWER * torch.log1p(centre.distance(place).square() / (2 * POWER))
    return height - torch.logsumexp(height, 0)


def needed_starts(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> tuple[tuple[float, ...], ...]:
    """Places from which the rows' other modes at θ (S, D) are found: () where a row has one, or no other of any mass.

    Args:
        problem: the model's densities.
        rule: without such places, or with those that there are.
        theta: (S, D).
        rows: row tensors, each (m, ...).
    """
    climber = rule.climber(0)
    starts = rule.starts or ()

    def every(one: Tensor) -> Centre:
        return search(problem, one, rows, rule.centres(problem, one, rows), climber)

    found = Centre(*problem.vmap(every)(theta))
    known = found.mode.shape[1] - MOST_NEW
    mass = log_mass(found)  # (S, J + new, m)
    lacking = mass[:, known:] - torch.logsumexp(mass, 1, keepdim=True) > math.log(rule.node_tolerance)
    while len(starts) < MOST_STARTS and bool(lacking.any()):
        places = found.mode[:, known:][lacking].double()
        middle = places.median(0).values
        spread = places.std(0, correction=0).clamp_min(torch.finfo(places.dtype).tiny)
        nearest = places[((places - middle) / spread).square().sum(-1).argmin()]
        starts = (*starts, tuple(nearest.tolist()))
        trial = rule.from_places(starts)
        now = Centre(*problem.vmap(lambda one: trial.centres(problem, one, rows))(theta))  # noqa: B023  # called at once
        for j in range(now.mode.shape[1]):
            end = Centre(*(part[:, j].unsqueeze(1) for part in now))
            others = Centre(*(part[:, known:] for part in found))
            apart = torch.maximum(others.distance(end.mode), end.distance(others.mode))
            lacking = lacking & (apart > SAME)
    return starts


def unseen(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> Tensor:
    """By how much modes that a rule does not find raise each row's log marginal likelihood at θ (S, D): (S, m).

    Args:
        problem: the model's densities.
        rule: as it is fitted.
        theta: (S, D).
        rows: row tensors, each (m, ...).
    """

    def lacking(one: Tensor) -> Tensor:
        known = rule.centres(problem, one, rows)
        every = alive(search(problem, one, rows, known, rule.climber(0)))
        own, all_modes = (torch.logsumexp(rule.log_masses(problem, one, rows, c)[1], 0) for c in (known, every))
        return torch.where(own.isfinite(), (all_modes - own).nan_to_num(nan=torch.inf), 0.0)

    found: Tensor = problem.vmap(lacking)(theta)
    return found


def _like(value: Tensor, part: Tensor) -> Tensor:
    return value.reshape(value.shape + (1,) * (part.dim() - value.dim()))
