"""The modes of the rows' latents given θ, by Newton's method, and integrals of rows that have several of them.

    ∫ exp f dx = Σ_j ∫ exp f w_j dx,    w_j = h_j / Σ_k h_k,    h_j = exp f(m_j) (1 + |C_j'(x - m_j)|² / 2p)^-p

Each mode j has a bump h_j with the mode's height and curvature, and w_j is its share of the sum of all bumps (a
partition of unity). For separated modes, exp f w_j is a single bump around m_j. For overlapping modes, or two searches
that end at the same mode, no mass counts twice. Gaussian bumps (p = ∞) would cut the tails between modes sharply, which
nodes do not resolve; for a small p the shares vary over distances of the order of those between the modes.

Derivatives keep w_j and the nodes fixed. For draws, a mode is chosen by its mass, and a proposed place around it is
accepted by exp f w_j.

Several modes are searched for when a problem is built, and again at the draws of a result. The search evaluates a
ladder of places around the first mode, up to thousands of its SDs away in each direction. There is one mode if every
tangent at one of them lies above the density at all others, as for a concave function. Otherwise searches start from
these places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.rounding import rounding_of
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.matrices import absolute_cholesky, solve_lower, solve_lower_transposed

Rows = tuple[Tensor, ...]


class Centre(NamedTuple):
    """Location and scale of the nodes of m rows: mode (m, d) and factor C of the curvature (m, d, d).

    `decrement` (m,) is the length of the next Newton step, in posterior SDs of x; `value` (m,) is the log joint
    density. For several modes each tensor has an axis of modes before the axis of rows.
    """

    mode: Tensor
    factor: Tensor
    decrement: Tensor
    value: Tensor

    def at(self, which: int | slice) -> Centre:
        """The centre of one mode, or of some modes, for tensors with an axis of modes."""
        return Centre(*(part[which] for part in self))

    def places_at(self, units: Tensor) -> Tensor:
        """Places m + C⁻ᵀ u at distances u (..., d) from the modes, in SDs."""
        return self.mode + solve_lower_transposed(self.factor, units)

    def units_of(self, place: Tensor) -> Tensor:
        """Places (..., d) in units of the curvatures, C'(x - m); the inverse of `places_at`."""
        units: Tensor = (self.factor.mT @ (place - self.mode).unsqueeze(-1)).squeeze(-1)
        return units

    def can_rise(self, tolerance: float) -> Tensor:
        """Whether the next step (m,) is longer than `tolerance` SDs and gains more than rounding; False for NaN."""
        return (self.decrement > tolerance) & (0.5 * self.decrement.square() > rounding_of(self.value))

    def distance(self, place: Tensor) -> Tensor:
        """Distances of places (..., d) from the modes, in SDs."""
        lengths: Tensor = self.units_of(place).norm(dim=-1)
        return lengths


class Ascent(NamedTuple):
    """State of a mode search: each row's place (m, d), the moments there, and the share of the next step (m,)."""

    place: Tensor
    here: Moments
    share: Tensor


@dataclass(frozen=True)
class LatentAscent:
    """Newton's method for maxima, with the settings of a `Quadrature` of these names."""

    shorten: float
    floor: float

    def ascend(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor, steps: int) -> Centre:
        """The modes after `steps` steps from places (m, d), at θ (D,)."""
        state = self.start_at(problem, theta, rows, place)
        for _ in range(steps):
            state = self.step(problem, theta, rows, state)
        return self.centre_of(state)

    def start_at(self, problem: RowDensities, theta: Tensor, rows: Rows, place: Tensor) -> Ascent:
        """The searches at places (m, d), before their first step."""
        return Ascent(place, look(problem, theta, rows, place), theta.new_ones(len(place)))

    def step(
        self, problem: RowDensities, theta: Tensor, rows: Rows, state: Ascent, part: Tensor | float = 1.0
    ) -> Ascent:
        """The searches after another Newton step, or a part of it."""
        place, here, share = state
        trial = place + part * share.unsqueeze(-1) * self.direction(here)[0]
        there = look(problem, theta, rows, trial)
        improved = there.value >= here.value
        moments = Moments(*(choose(improved, new, old) for new, old in zip(there, here, strict=True)))
        return Ascent(choose(improved, trial, place), moments, torch.where(improved, 1.0, share * self.shorten))

    def centre_of(self, state: Ascent) -> Centre:
        """The current places of the searches, with curvatures; constants for derivatives."""
        step, factor = self.direction(state.here)
        decrement = (step * state.here.score).sum(-1).abs().sqrt()
        return Centre(*(part.detach() for part in (state.place, factor, decrement, state.here.value)))

    def parabola_top(self, state: Ascent) -> Centre:
        """The modes of parabolas with the values, scores and curvatures at the searches' places."""
        here = self.centre_of(state)
        step = self.direction(state.here)[0].detach()
        return Centre(here.mode + step, here.factor, 0 * here.decrement, here.value + here.decrement.square() / 2)

    def direction(self, here: Moments) -> tuple[Tensor, Tensor]:
        """The step |H|⁻¹ ∇f and the factor of |H|."""
        # The integral over a latent on which f does not depend is infinite, and must be constant in θ.
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
#: Largest number of Newton steps from a rung.
MAX_RUNG_STEPS = 25
#: Distance in SDs, by both curvatures, up to which two searches have found the same mode.
SAME_MODE_SDS = 0.5
#: The power p above.
BUMP_POWER = 4.0
#: Largest number of new modes of a row; those with the largest mass are kept.
MAX_NEW_MODES = 3
#: Largest number of starts of searches besides zero.
MAX_STARTS = 8


class Rule(Protocol):
    """The members of `Quadrature` that are used here."""

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
    """The known modes (S, J, m, ...) at θ (S, D) and `MAX_NEW_MODES` new ones, with value -inf if there are fewer."""
    known = _swap_axes(known)  # (J, S, m, ...)
    ends, good = _ends(problem, rule, theta, rows, known.at(0))
    count = len(known.mode)
    all_modes = Centre(*(torch.cat(parts) for parts in zip(known, ends, strict=True)))
    is_kept = [torch.ones_like(good[0])] * count
    for i in range(len(good)):
        before = all_modes.at(slice(0, count + i))
        end = all_modes.at(count + i)
        separation = torch.maximum(before.distance(end.mode), end.distance(before.mode))
        is_known = (torch.stack(is_kept) & ~(separation > SAME_MODE_SDS)).any(0)
        is_kept.append(good[i] & ~is_known)
    mass = torch.where(torch.stack(is_kept[count:]), log_mass(ends), -torch.inf)
    best = mass.topk(MAX_NEW_MODES, 0)
    new = best.values > -torch.inf
    parts = []
    for old, part in zip(known, ends, strict=True):
        index = _like(best.indices, part).expand(-1, *part.shape[1:])
        parts.append(torch.cat([old, torch.where(_like(new, part), part.gather(0, index), old[:1])]))
    result = Centre(*parts)
    return _swap_axes(
        result._replace(value=torch.cat([known.value, torch.where(new, result.value[count:], -torch.inf)]))
    )


def _ends(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows, first: Centre) -> tuple[Centre, Tensor]:
    """Ends of the searches from the ladder's R rungs, (R, S, m, ...), and whether they are modes, (R, S, m)."""
    newton = rule.newton_ascent
    height = torch.tensor(RUNGS, dtype=first.mode.dtype, device=first.mode.device)
    units = (height[:, None, None] * directions(problem.local_dim, first.mode)).flatten(0, 1)

    def each(one: Callable[..., Ascent]) -> Callable[..., Ascent]:
        """The same for all rungs at all θ."""
        return problem.vmap(lambda at, of: problem.vmap(lambda state: one(problem, at, rows, state))(of))

    first_with_axis = Centre(*(part.unsqueeze(1) for part in first))
    state = each(newton.start_at)(theta, first_with_axis.places_at(units.unsqueeze(1)))  # (S, R, m, ...)
    if _is_concave(state, first):
        starts = _swap_axes(newton.centre_of(state))
        return starts, torch.zeros_like(starts.value, dtype=torch.bool)
    step = each(newton.step)
    for _ in range(MAX_RUNG_STEPS):
        if not bool(newton.centre_of(state).can_rise(rule.mode_tolerance).any()):
            break
        state = step(theta, state)
    ends = newton.centre_of(state)
    is_maximum = torch.linalg.eigvalsh(state.here.curvature.nan_to_num(nan=-1.0, posinf=-1.0, neginf=-1.0))[..., 0] > 0
    return _swap_axes(ends), (is_maximum & (ends.decrement <= NEGLIGIBLE) & ends.value.isfinite()).transpose(0, 1)


def _is_concave(state: Ascent, first: Centre) -> bool:
    """Whether each row's tangents at R places around its first mode lie above its density at the other places."""
    displacement, (value, score, _) = state.place - first.mode.unsqueeze(1), state.here
    own_slope = (score * displacement).sum(-1)
    at_others = torch.einsum("sami,sbmi->sabm", score, displacement)
    size = torch.einsum("sami,sbmi->sabm", score.abs(), displacement.abs()) + (own_slope.abs() + value.abs()).unsqueeze(
        2
    )
    tolerance = rounding_of(1 + size + value.abs().unsqueeze(1))
    tangent = (value - own_slope).unsqueeze(2) + at_others
    # Places at which the density overflows do not count.
    is_comparable = tangent.isfinite() & ~value.isnan().unsqueeze(1)
    return not bool((is_comparable & (value.unsqueeze(1) > tangent + tolerance)).any())


def directions(dim: int, like: Tensor) -> Tensor:
    """The axes and their diagonal, in both directions: (2 d + 2, d), or (2, 1)."""
    axes = torch.eye(dim, dtype=like.dtype, device=like.device)
    if dim > 1:
        axes = torch.cat([axes, torch.full_like(axes[:1], dim**-0.5)])
    return torch.cat([axes, -axes])


def one_mode_each(modes: Centre) -> Centre:
    """One mode of each row (S, m, ...) as `Quadrature.centres` gives several, (S, 1, m, ...)."""
    return Centre(*(part.unsqueeze(1) for part in modes))


def log_mass(centre: Centre) -> Tensor:
    """Laplace approximations of the modes' log masses, up to a common constant."""
    diagonal = centre.factor.diagonal(dim1=-2, dim2=-1)
    return centre.value - diagonal.log().sum(-1)


def without_failed_ascents(centre: Centre) -> Centre:
    """The centre with the first mode in place of ends (J, m) that are not finite, from starts without mass."""
    is_finite = centre.value.isfinite() & centre.factor.flatten(2).isfinite().all(-1) & centre.mode.isfinite().all(-1)
    return Centre(*(torch.where(_like(is_finite, part), part, part[:1]) for part in centre))


def log_shares(centre: Centre, place: Tensor) -> Tensor:
    """log w_j of places (m, d): (J, m)."""
    height = centre.value - BUMP_POWER * torch.log1p(centre.distance(place).square() / (2 * BUMP_POWER))
    return height - torch.logsumexp(height, 0)


def needed_starts(
    problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows, known_modes: Centre | None = None
) -> tuple[tuple[float, ...], ...]:
    """Starts from which the rows' other modes at θ (S, D) are found; () if one mode has the mass of each row."""
    starts = rule.starts or ()
    modes = search(problem, rule, theta, rows, known_modes or modes_at_points(problem, rule, theta, rows))
    known = modes.mode.shape[1] - MAX_NEW_MODES
    mass = log_mass(modes)  # (S, J + new, m)
    missing = mass[:, known:] - torch.logsumexp(mass, 1, keepdim=True) > math.log(rule.node_tolerance)
    while len(starts) < MAX_STARTS and bool(missing.any()):
        places = modes.mode[:, known:][missing].double()
        median = places.median(0).values
        spread = places.std(0, correction=0).clamp_min(torch.finfo(places.dtype).tiny)
        nearest = places[((places - median) / spread).square().sum(-1).argmin()]
        starts = (*starts, tuple(nearest.tolist()))
        next_modes = modes_at_points(problem, rule.from_places(starts), theta, rows)
        for j in range(next_modes.mode.shape[1]):
            end = Centre(*(part[:, j].unsqueeze(1) for part in next_modes))
            others = Centre(*(part[:, known:] for part in modes))
            separation = torch.maximum(others.distance(end.mode), end.distance(others.mode))
            missing = missing & (separation > SAME_MODE_SDS)
    return starts


def missed_mode_log_mass(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> Tensor:
    """Increase (S, m) of each row's log marginal likelihood at θ (S, D) by modes that a rule does not find."""
    known = modes_at_points(problem, rule, theta, rows)
    all_centres = search(problem, rule, theta, rows, known)

    def lacking(one: Tensor, found: Centre, more: Centre) -> Tensor:
        modes = found, without_failed_ascents(more)
        own, all_modes = (torch.logsumexp(rule.log_masses(problem, one, rows, c)[1], 0) for c in modes)
        return torch.where(own.isfinite(), (all_modes - own).nan_to_num(nan=torch.inf), 0.0)

    increase: Tensor = problem.vmap(lacking)(theta, known, all_centres)
    return increase


def modes_at_points(problem: RowDensities, rule: Rule, theta: Tensor, rows: Rows) -> Centre:
    """The modes (S, J, m, ...) that a rule finds at each θ (S, D)."""
    return Centre(*problem.vmap(lambda point: rule.centres(problem, point, rows))(theta))


def _swap_axes(centre: Centre) -> Centre:
    """The centre with its first two axes exchanged."""
    return Centre(*(part.transpose(0, 1) for part in centre))


def _like(value: Tensor, part: Tensor) -> Tensor:
    return value.reshape(value.shape + (1,) * (part.dim() - value.dim()))
