"""The modes of the rows' latents given θ, by Newton's method, and integrals of rows that have several of them.

    ∫ exp f dx = Σ_j ∫ exp f w_j dx,    w_j = h_j / Σ_k h_k,    h_j = exp f(m_j) (1 + |C_j'(x - m_j)|² / 2p)^-p

Each mode j has a bump h_j with the mode's height and curvature, and w_j is its share of the sum of all bumps (a
partition of unity). Where modes are apart, exp f w_j is a single bump around m_j. Where they overlap, or where two
ascents have ended at the same mode, no mass counts twice. Gaussian bumps (p = ∞) would cut the tails between modes
sharply, which nodes do not resolve; with a small p the shares change over distances like those between the modes.

In derivatives w_j is held fixed, as the nodes are. To draw, a mode is chosen by its mass and a place around it is
proposed, which is accepted by exp f w_j.

Whether there are several modes is found when the model is read, and again at the draws of a result. A ladder of places
stands around the first mode, up to thousands of its SDs away in every direction. Where every tangent at one of them
lies above the density at all others, as those of a concave function do, there is one mode. Elsewhere ascents start
from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.conventions.limits import NEGLIGIBLE, ROUNDING_UNITS
from pyro_fed.density.bound import RowDensities
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.matrices import absolute_cholesky, solve_lower, solve_lower_transposed

Rows = tuple[Tensor, ...]


class Centre(NamedTuple):
    """Where the nodes of m rows are: mode (m, d), factor C of the curvature (m, d, d), and how near the mode is.

    `decrement` (m,) is the length of the next Newton step, in posterior SDs of x; `value` (m,) the log joint density.
    Of rows with several modes each has an axis of these before the rows'.
    """

    mode: Tensor
    factor: Tensor
    decrement: Tensor
    value: Tensor

    def at(self, which: int | slice) -> Centre:
        """Those of one mode, or of some, where each has an axis."""
        return Centre(*(part[which] for part in self))

    def places_at(self, units: Tensor) -> Tensor:
        """Places so many SDs (..., d) from the modes, m + C⁻ᵀ u."""
        return self.mode + solve_lower_transposed(self.factor, units)

    def units_of(self, place: Tensor) -> Tensor:
        """Where places (..., d) are in units of the curvatures, C'(x - m): what `places_at` takes."""
        found: Tensor = (self.factor.mT @ (place - self.mode).unsqueeze(-1)).squeeze(-1)
        return found

    def distance(self, place: Tensor) -> Tensor:
        """How many SDs places (..., d) are from the modes."""
        found: Tensor = self.units_of(place).norm(dim=-1)
        return found


class Ascent(NamedTuple):
    """On the way to the modes: where each row is (m, d), what is seen there, and the share of the next step (m,)."""

    place: Tensor
    here: Moments
    share: Tensor


@dataclass(frozen=True)
class LatentAscent:
    """Newton's method uphill, by a `Quadrature`'s settings of these names."""

    shorten: float
    floor: float

    def ascend(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor, steps: int) -> Centre:
        """The modes that so many steps from places (m, d) lead to, at θ (D,)."""
        state = self.start_at(problem, theta, rows, place)
        for _ in range(steps):
            state = self.step(problem, theta, rows, state)
        return self.centre_of(state)

    def start_at(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Ascent:
        """The ascents at places (m, d), before their first step."""
        return Ascent(place, look(problem, theta, rows, place), theta.new_ones(len(place)))

    def step(
        self, problem: RowDensities, theta: Tensor, rows: Rows, state: Ascent, part: Tensor | float = 1.0
    ) -> Ascent:
        """The ascents after one more Newton step, or a part of it."""
        place, here, share = state
        trial = place + part * share.unsqueeze(-1) * self.direction(here)[0]
        there = look(problem, theta, rows, trial)
        better = there.value >= here.value
        chosen = Moments(*(choose(better, new, old) for new, old in zip(there, here, strict=True)))
        return Ascent(choose(better, trial, place), chosen, torch.where(better, 1.0, share * self.shorten))

    def centre_of(self, state: Ascent) -> Centre:
        """The places that the ascents have reached, with curvatures; constants for derivatives."""
        step, factor = self.direction(state.here)
        decrement = (step * state.here.score).sum(-1).abs().sqrt()
        return Centre(*(part.detach() for part in (state.place, factor, decrement, state.here.value)))

    def parabola_top(self, state: Ascent) -> Centre:
        """The modes of the parabolas that have the values, scores and curvatures at the ascents' places."""
        here = self.centre_of(state)
        step = self.direction(state.here)[0].detach()
        return Centre(here.mode + step, here.factor, 0 * here.decrement, here.value + here.decrement.square() / 2)

    def direction(self, here: Moments) -> tuple[Tensor, Tensor]:
        """The step |H|⁻¹ ∇f and the factor of |H|."""
        # The integral over a latent on which f does not depend is infinite, and has to stay the same at all θ.
        unused = (here.curvature == 0).all(-1) & (here.score == 0)
        factor = absolute_cholesky(here.curvature + torch.diag_embed(unused.to(here.curvature)), self.floor)
        return solve_lower_transposed(factor, solve_lower(factor, here.score)), factor


def look(problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Moments:
    """Value, score and curvature of the rows' log joint densities at places (m, d)."""

    def score_and_value(x: Tensor) -> tuple[Tensor, Tensor]:
        def total(y: Tensor) -> tuple[Tensor, Tensor]:
            value = problem.conditional_parts(theta, rows, y)[1]
            return value.sum(), value

        score, value = grad(total, has_aux=True)(x)
        return score, value

    (score, value), pull = vjp(score_and_value, place)[:2]
    units = torch.eye(place.shape[-1], dtype=place.dtype, device=place.device)
    # Rows are independent given θ: one product with a unit vector at every row gives a column of every row's block.
    columns = problem.vmap(lambda unit: pull((unit.expand_as(place), torch.zeros_like(value)))[0])(units)
    return Moments(value.detach(), score.detach(), -columns.movedim(0, -1).detach())


#: Rungs of the ladder: distances from the first mode in its SDs, along each axis and the diagonal, both ways.
RUNGS = tuple(2.0**k for k in range(13))
#: Newton steps from a rung, at most.
MAX_RUNG_STEPS = 25
#: Two ascents have come to the same mode if they end within so many SDs, by both curvatures.
SAME_MODE_SDS = 0.5
#: The power p above.
BUMP_POWER = 4.0
#: New modes of a row that are kept: those of the largest mass.
MAX_NEW_MODES = 3
#: Places besides zero from which modes are looked for, at most.
MAX_STARTS = 8


class Rule(Protocol):
    """What is taken of a `Quadrature`."""

    @property
    def starts(self) -> tuple[tuple[float, ...], ...] | None: ...

    @property
    def node_tolerance(self) -> float: ...

    @property
    def mode_tolerance(self) -> float: ...

    @property
    def newton_ascent(self) -> LatentAscent: ...

    def centres(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Centre: ...

    def log_masses(self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre) -> tuple[Tensor, Tensor]: ...

    def from_places(self, starts: tuple[tuple[float, ...], ...]) -> Self: ...


def search(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows, known: Centre) -> Centre:
    """The known modes (S, J, m, ...) at θ (S, D) and `MAX_NEW_MODES` that ascents find, of value -inf if fewer."""
    known = _swap_axes(known)  # (J, S, m, ...)
    ends, good = _ends(problem, rule, theta, rows, known.at(0))
    count = len(known.mode)
    every = Centre(*(torch.cat(parts) for parts in zip(known, ends, strict=True)))
    kept = [torch.ones_like(good[0])] * count
    for i in range(len(good)):
        before = every.at(slice(0, count + i))
        end = every.at(count + i)
        apart = torch.maximum(before.distance(end.mode), end.distance(before.mode))
        seen = (torch.stack(kept) & ~(apart > SAME_MODE_SDS)).any(0)
        kept.append(good[i] & ~seen)
    mass = torch.where(torch.stack(kept[count:]), log_mass(ends), -torch.inf)
    best = mass.topk(MAX_NEW_MODES, 0)
    new = best.values > -torch.inf
    parts = []
    for old, part in zip(known, ends, strict=True):
        index = _like(best.indices, part).expand(-1, *part.shape[1:])
        parts.append(torch.cat([old, torch.where(_like(new, part), part.gather(0, index), old[:1])]))
    found = Centre(*parts)
    return _swap_axes(found._replace(value=torch.cat([known.value, torch.where(new, found.value[count:], -torch.inf)])))


def _ends(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows, first: Centre) -> tuple[Centre, Tensor]:
    """Where the ascents from the ladder's R rungs end, (R, S, m, ...), and which ends are modes, (R, S, m)."""
    newton = rule.newton_ascent
    height = torch.tensor(RUNGS, dtype=first.mode.dtype, device=first.mode.device)
    units = (height[:, None, None] * directions(problem.local_dim, first.mode)).flatten(0, 1)

    def each(one: Callable[..., Ascent]) -> Callable[..., Ascent]:
        """The same for all rungs at all θ."""
        return problem.vmap(lambda at, of: problem.vmap(lambda state: one(problem, at, rows, state))(of))

    around = Centre(*(part.unsqueeze(1) for part in first))
    state = each(newton.start_at)(theta, around.places_at(units.unsqueeze(1)))  # (S, R, m, ...)
    if _is_concave(state, first):
        starts = _swap_axes(newton.centre_of(state))
        return starts, torch.zeros_like(starts.value, dtype=torch.bool)
    step = each(newton.step)
    for _ in range(MAX_RUNG_STEPS):
        if bool((newton.centre_of(state).decrement <= rule.mode_tolerance).all()):
            break
        state = step(theta, state)
    found = newton.centre_of(state)
    bowl = torch.linalg.eigvalsh(state.here.curvature.nan_to_num(nan=-1.0, posinf=-1.0, neginf=-1.0))[..., 0] > 0
    return _swap_axes(found), (bowl & (found.decrement <= NEGLIGIBLE) & found.value.isfinite()).transpose(0, 1)


def _is_concave(state: Ascent, first: Centre) -> bool:
    """Whether each row's tangents at R places around its first mode lie above its density at the others."""
    away, (value, score, _) = state.place - first.mode.unsqueeze(1), state.here
    own = (score * away).sum(-1)
    at_others = torch.einsum("sami,sbmi->sabm", score, away)
    size = torch.einsum("sami,sbmi->sabm", score.abs(), away.abs()) + (own.abs() + value.abs()).unsqueeze(2)
    near = ROUNDING_UNITS * torch.finfo(value.dtype).eps * (1 + size + value.abs().unsqueeze(1))
    tangent = (value - own).unsqueeze(2) + at_others
    # From where the density has overflowed no ascent leads anywhere.
    known = tangent.isfinite() & ~value.isnan().unsqueeze(1)
    return not bool((known & (value.unsqueeze(1) > tangent + near)).any())


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


def without_failed_ascents(centre: Centre) -> Centre:
    """With the first mode in place of ends (J, m) that are not finite: their ascents began where there is no mass."""
    lives = centre.value.isfinite() & centre.factor.flatten(2).isfinite().all(-1) & centre.mode.isfinite().all(-1)
    return Centre(*(torch.where(_like(lives, part), part, part[:1]) for part in centre))


def log_shares(centre: Centre, place: Tensor) -> Tensor:
    """log w_j of places (m, d): (J, m)."""
    height = centre.value - BUMP_POWER * torch.log1p(centre.distance(place).square() / (2 * BUMP_POWER))
    return height - torch.logsumexp(height, 0)


def needed_starts(
    problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows, known_modes: Centre | None = None
) -> tuple[tuple[float, ...], ...]:
    """Places from which the rows' other modes at θ (S, D) are found: () if each row has one mode that has the mass."""
    starts = rule.starts or ()
    found = search(problem, rule, theta, rows, known_modes or modes_at_points(problem, rule, theta, rows))
    known = found.mode.shape[1] - MAX_NEW_MODES
    mass = log_mass(found)  # (S, J + new, m)
    lacking = mass[:, known:] - torch.logsumexp(mass, 1, keepdim=True) > math.log(rule.node_tolerance)
    while len(starts) < MAX_STARTS and bool(lacking.any()):
        places = found.mode[:, known:][lacking].double()
        middle = places.median(0).values
        spread = places.std(0, correction=0).clamp_min(torch.finfo(places.dtype).tiny)
        nearest = places[((places - middle) / spread).square().sum(-1).argmin()]
        starts = (*starts, tuple(nearest.tolist()))
        now = modes_at_points(problem, rule.from_places(starts), theta, rows)
        for j in range(now.mode.shape[1]):
            end = Centre(*(part[:, j].unsqueeze(1) for part in now))
            others = Centre(*(part[:, known:] for part in found))
            apart = torch.maximum(others.distance(end.mode), end.distance(others.mode))
            lacking = lacking & (apart > SAME_MODE_SDS)
    return starts


def missed_mode_log_mass(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> Tensor:
    """By how much modes that a rule does not find raise each row's log marginal likelihood at θ (S, D): (S, m)."""
    known = modes_at_points(problem, rule, theta, rows)
    every = search(problem, rule, theta, rows, known)

    def lacking(one: Tensor, found: Centre, more: Centre) -> Tensor:
        modes = found, without_failed_ascents(more)
        own, all_modes = (torch.logsumexp(rule.log_masses(problem, one, rows, c)[1], 0) for c in modes)
        return torch.where(own.isfinite(), (all_modes - own).nan_to_num(nan=torch.inf), 0.0)

    raised: Tensor = problem.vmap(lacking)(theta, known, every)
    return raised


def modes_at_points(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> Centre:
    """The modes that a rule finds at each θ (S, D): (S, J, m, ...)."""
    return Centre(*problem.vmap(lambda one: rule.centres(problem, one, rows))(theta))


def _swap_axes(centre: Centre) -> Centre:
    """With its first two axes in each other's place."""
    return Centre(*(part.transpose(0, 1) for part in centre))


def _like(value: Tensor, part: Tensor) -> Tensor:
    return value.reshape(value.shape + (1,) * (part.dim() - value.dim()))
