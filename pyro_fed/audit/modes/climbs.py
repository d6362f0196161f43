"""Climbs of the log density f, the modes where they end, and the modes' masses.

A climb is BFGS in the result's whitened coordinates,

    w ← w + α B ∇f(w),     B an inverse curvature from the score's changes along the way,  α cut until f rises

It ends at a mode if |∇f| is small and the curvature H (by differences of scores) is positive definite. Up to a constant
the mode's mass is

    log M = f - log |H| / 2                                                                    (Laplace)
    log M = log mean of exp f / t over `POINTS_A_ROUND` points of t - D/2 log 2π                (importance weights)

where t is the density of a Student's t with the mode's curvature, and points nearer to another mode count as zero.

Damped Newton steps (`ops.newton_ascent`) search for the first mode, refine each new one, and finish the last
`NEWTON_CLIMBS` climbs. Each takes 2 D + 1 scores, and few are needed. The Stein family's search (`infer.stein.modes`)
uses only Newton steps, since its rounds are expensive and clients have second derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.target import SCORE_STEP, Target
from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.ops.adaptive_importance import FREEDOM, NEGLIGIBLE_NATS
from pyro_fed.ops.backtrack import MIN_FRACTION
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.importance import log_mean
from pyro_fed.ops.matrices import equilibrated_cholesky, inverse_of
from pyro_fed.ops.newton_ascent import Damping, NewtonAscent, newton_steps
from pyro_fed.ops.student import Mixture

#: Largest number of steps of a climb, and the length of the gradient, in the metric of B, at which it has arrived.
MAX_CLIMB_STEPS, ARRIVAL_SDS = 60, 0.05
#: Number of last climbs that are finished by Newton steps.
NEWTON_CLIMBS = 2
#: Longest step, in the result's SDs; far away, a quarter of the distance.
MAX_STEP_SDS = 3.0
#: Two modes nearer to each other than this, in SDs of either one, are one mode; so near a draw belongs to a mode.
SAME_MODE_SDS = 2.0
#: First damping of Newton steps, for climbs that are near a mode.
FIRST_DAMPING = 0.1


@dataclass(frozen=True)
class Mode:
    """A maximum of the log density, in the result's whitened coordinates."""

    at: Tensor  # its position, w (D,)
    log_mass: float  # log M by Laplace's approximation, up to a constant
    precision: Tensor  # H (D, D), the negative Hessian there

    @property
    def height(self) -> float:
        """f, the log density at the maximum."""
        return self.log_mass + float(torch.linalg.slogdet(self.precision)[1]) / 2

    def shifts(self, white: Tensor) -> Tensor:
        """Distances of points w (S, D) from the mode in each coordinate, in the mode's SDs of it, (S, D)."""
        sds: Tensor = torch.linalg.inv(self.precision).diagonal().sqrt()
        return ((white - self.at) / sds).abs()

    def distance(self, white: Tensor) -> Tensor:
        """Distances of points w (S, D) from the mode, in the mode's SDs (S,)."""
        away = white - self.at
        return ((away @ self.precision) * away).sum(1).clamp_min(0).sqrt()


def same(one: Mode, other: Mode) -> bool:
    """Whether two modes are the same one: their distance is less than `SAME_MODE_SDS` SDs of either."""
    return min(float(one.distance(other.at[None])), float(other.distance(one.at[None]))) < SAME_MODE_SDS


@dataclass
class Climbers:
    """The state of M climbs."""

    target: Target
    w: Tensor  # positions (M, D)
    value: Tensor  # f (M,)
    score: Tensor  # ∇f (M, D)
    inverse: Tensor  # B (M, D, D)
    ascent: Tensor  # B ∇f (M, D)
    step: Tensor  # α (M,)

    @classmethod
    def begin(cls, target: Target, start: Tensor) -> Climbers:
        """Climbs from w (M, D)."""
        value, score = target(start)
        count, dim = start.shape
        inverse = torch.eye(dim, dtype=start.dtype).repeat(count, 1, 1)
        return cls(target, start, value, score, inverse, score, torch.ones(count, dtype=start.dtype))

    @property
    def left_over(self) -> Tensor:
        """The gradients' lengths in the metric of B, (M,)."""
        return (self.score * self.ascent).sum(1).clamp_min(0).sqrt()

    @property
    def arrived(self) -> Tensor:
        """Which climbs are at a maximum (M,), up to a negligible distance in the mode's SDs."""
        return (self.left_over < ARRIVAL_SDS) & self.value.isfinite()

    def keep(self, which: Tensor) -> None:
        """Continue with the climbs that a mask (M,) selects."""
        for part in ("w", "value", "score", "inverse", "ascent", "step"):
            setattr(self, part, getattr(self, part)[which])

    def move(self) -> None:
        """Take one step of every climb."""
        length = self.ascent.norm(dim=1, keepdim=True)
        far = (self.w.norm(dim=1, keepdim=True) / 4).clamp_min(MAX_STEP_SDS)
        trial = self.w + self.step[:, None] * self.ascent * (far / length).clamp(max=1.0)
        new_value, new_score = self.target(trial)
        rose = (new_value >= self.value) & new_value.isfinite()
        s, y = trial - self.w, self.score - new_score
        along = (s * y).sum(1)
        # If the step is nearly orthogonal to the change of the score, the curvature along it is rounding error.
        usable = rose & (along > torch.finfo(s.dtype).eps * s.norm(dim=1) * y.norm(dim=1))
        rho = torch.where(usable, 1 / along, 0.0)[:, None, None]
        pulled = (self.inverse @ y[..., None])[..., 0]
        both = s[:, :, None] * pulled[:, None, :]
        more = 1 + rho * (y * pulled).sum(1)[:, None, None]
        updated = self.inverse + rho * (more * s[:, :, None] * s[:, None, :] - both - both.mT)
        self.inverse = torch.where(usable[:, None, None], updated, self.inverse)
        # If even a short step does not increase f, B is reset to the identity.
        lost = ~rose & (self.step < MIN_FRACTION)
        self.inverse[lost] = torch.eye(self.w.shape[1], dtype=self.w.dtype)
        self.step = torch.where(rose | lost, 1.0, self.step / 5)
        self.w = torch.where(rose[:, None], trial, self.w)
        self.value = torch.where(rose, new_value, self.value)
        self.score = torch.where(rose[:, None], new_score, self.score)
        self.ascent = (self.inverse @ self.score[..., None])[..., 0]


def climb_ends(target: Target, start: Tensor) -> tuple[Tensor, Tensor]:
    """Climb from w (M, D): the ends of the climbs (M, D), and whether each has arrived at a maximum (M,)."""
    climbs = Climbers.begin(target, start)
    for _ in range(MAX_CLIMB_STEPS):
        climbs.move()
        if bool((climbs.left_over < ARRIVAL_SDS).all()):
            break
    return climbs.w, climbs.arrived


def modes_by_climbs(target: Target, start: Tensor) -> tuple[list[Mode], dict[int, Tensor]]:
    """The modes to which climbs from w (M, D) lead, and the ends of the climbs that arrive, by number."""
    climbs, number = Climbers.begin(target, start), torch.arange(len(start))
    usable = climbs.value.isfinite()
    climbs.keep(usable)
    number = number[usable]
    modes: list[Mode] = []
    ends: dict[int, Tensor] = {}
    add_mode(modes, mode_by_newton(target, torch.zeros_like(start[0])))
    for _ in range(MAX_CLIMB_STEPS):
        climbs.move()
        arrived = climbs.arrived
        for climb in arrived.nonzero()[:, 0].tolist():
            end = climbs.w[climb]
            ends[int(number[climb])] = end
            if not any(float(mode.distance(end[None])) < SAME_MODE_SDS for mode in modes):
                add_mode(modes, mode_by_newton(target, end))
        climbs.keep(~arrived)
        number = number[~arrived]
        if len(number) <= NEWTON_CLIMBS:
            break
    if len(number) <= NEWTON_CLIMBS:
        for climb, w in zip(number.tolist(), climbs.w, strict=True):
            mode = mode_by_newton(target, w)
            if mode is not None:
                ends[climb] = mode.at
                add_mode(modes, mode)
    return modes, ends


def add_mode(modes: list[Mode], mode: Mode | None) -> None:
    """Add `mode` to the known `modes` in place, unless it is None or one of these."""
    if mode is not None and not any(same(mode, other) for other in modes):
        modes.append(mode)


def mode_uphill(target: Target, w: Tensor) -> Mode | None:
    """The mode at the end of a climb from w (D,); None if the climb does not arrive."""
    ends, arrived = climb_ends(target, w[None])
    return mode_by_newton(target, ends[0]) if bool(arrived[0]) else None


def mode_by_newton(target: Target, w: Tensor) -> Mode | None:
    """The mode to which Newton's steps lead from w (D,); None if they lead to none."""
    control = Damping(rounding=ROUNDING_UNITS * torch.finfo(target.problem.dtype).eps)
    climb = NewtonAscent.begin(w[None], FIRST_DAMPING)
    for _ in range(MAX_CLIMB_STEPS):
        look = _look(target, climb.trial[0])
        climb = climb.tell(look, look.finite(), control)
        if not bool(climb.value.isfinite()):
            return None
        if float(climb.length) < ARRIVAL_SDS and bool(torch.linalg.eigvalsh(climb.curvature[0])[0] > 0):
            step, length = newton_steps(climb.score, climb.curvature, torch.zeros_like(climb.damping), control.floor)
            precision = climb.curvature[0]
            log_mass = float(climb.value + length.square() / 2 - torch.linalg.slogdet(precision)[1] / 2)
            return Mode((climb.points + step)[0], log_mass, precision)
    return None


def _look(target: Target, w: Tensor) -> Moments:
    """Log density, score and curvature (by differences of scores) at w (D,), with a leading axis for one climb."""
    dim = len(w)
    eye = torch.eye(dim, dtype=w.dtype) * SCORE_STEP
    value, score = target(torch.cat([w[None], w + eye, w - eye]))
    gap = (score[dim + 1 :] - score[1 : dim + 1]) / (2 * SCORE_STEP)
    return Moments(value[:1], score[:1], ((gap + gap.T) / 2)[None])


def nearest(modes: list[Mode], white: Tensor) -> Tensor:
    """The number of the mode whose Gaussian has the largest density, at each of the points w (S, D): (S,)."""
    heights = [mode.height - mode.distance(white).square() / 2 for mode in modes]
    return torch.stack(heights).argmax(0)


def log_mass_by_weights(
    target: Target, modes: list[Mode], number: int, points: int, generator: torch.Generator
) -> tuple[float, float]:
    """log M of a mode by importance weights, and its standard error, infinite if no point is nearest to the mode."""
    mode, dim = modes[number], len(modes[number].at)
    drawn = torch.tensor([float(points)], dtype=torch.float64)
    root = equilibrated_cholesky(inverse_of(mode.precision)).full_lower()
    proposal = Mixture(drawn, mode.at[None], root[None])
    white = proposal.draws(FREEDOM, generator)
    log_weights = target.values(white) - proposal.log_density(white, FREEDOM) + math.log(points)
    nearest_here = nearest(modes, white) == number
    if not bool((nearest_here & log_weights.isfinite()).any()):
        return mode.log_mass, math.inf
    largest = float(log_weights[nearest_here].max())
    log_mass, error = log_mean(torch.where(nearest_here, log_weights, -torch.inf).clamp_min(largest - NEGLIGIBLE_NATS))
    return log_mass - dim / 2 * math.log(2 * math.pi), error
