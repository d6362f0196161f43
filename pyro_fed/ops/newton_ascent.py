"""Climbs of a log density f to its modes by damped Newton steps, from several points at once, as an ask/tell object.

    θ ← θ + S |H|_λ⁻¹ S ∇f(θ),    |H|_λ = V (|E| + λ) V',    V E V' = S (-∇²f) S,    S = |diag ∇²f|^(-1/2)

    trial    the points whose value, score and curvature are requested
    tell     accepts a point if f has risen there, and proposes the next one, until all steps are short

The damping λ shrinks after a rise and grows after a fall (Levenberg and Marquardt). Absolute eigenvalues |E| make every
step an ascent, also at saddle points (Dauphin et al. 2014, *Identifying and attacking the saddle point problem*).

The caller evaluates f: by clients, round by round (`infer.stein.modes`), or in a loop with all rows and curvatures by
differences of scores (`audit.modes.climbs`).

Letters: θ `points`, λ `damping`, H = -∇²f `curvature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import choose
from pyro_fed.ops.matrices import times


@dataclass(frozen=True)
class Damping:
    """Settings of the damping of steps."""

    growth: float = 5.0  # λ grows by this factor after a fall, and shrinks by it after a rise
    floor: float = 1e-6  # lower bound of |E|
    rounding: float = 0.0  # share of |f| by which f may fall in a step that still counts as a rise


class NewtonAscent(NamedTuple):
    """M climbs."""

    points: Tensor  # current points, (M, D)
    trial: Tensor  # points to evaluate next, (M, D)
    value: Tensor  # f at the points (M,), -inf where it is unknown
    score: Tensor  # its gradient there, (M, D)
    curvature: Tensor  # H there, (M, D, D) or its diagonal (M, D)
    damping: Tensor  # λ (M,)
    length: Tensor  # of the next undamped step, in SDs of the Gaussian with the curvature |H|, (M,)

    @classmethod
    def begin(cls, points: Tensor, damping: float = 1.0, dense: bool = True) -> NewtonAscent:
        """Climbs from points (M, D), with λ = `damping` at first; by diagonals of curvatures if they are not dense."""
        count, dim = points.shape
        return cls(
            points=points,
            trial=points,
            value=points.new_full((count,), -torch.inf),
            score=torch.zeros_like(points),
            curvature=torch.eye(dim).to(points).repeat(count, 1, 1) if dense else torch.ones_like(points),
            damping=points.new_full((count,), damping),
            length=points.new_full((count,), torch.inf),
        )

    def tell(self, look: Moments, usable: Tensor, control: Damping) -> NewtonAscent:
        """Accept the trial points at which f has risen, and propose new ones; `usable` (M,) marks valid looks."""
        lowest = self.value - control.rounding * self.value.abs() if control.rounding else self.value
        risen = usable & (look.value >= lowest)
        value, score, curvature = (choose(risen, new, old) for new, old in zip(look, self[2:5], strict=True))
        points = choose(risen, self.trial, self.points)
        damping = torch.where(risen, self.damping / control.growth, self.damping * control.growth)
        step, length = newton_steps(score, curvature, damping, control.floor)
        movable = (points + step).isfinite().all(1)  # False where the log density is flat to the last digit
        longest = torch.finfo(length.dtype).max  # also where its square overflows
        length = torch.where(movable, length.nan_to_num(nan=longest, posinf=longest), longest)
        length = torch.where(value.isfinite(), length, torch.inf)
        trial = points + choose(movable, step, 0.0)
        return NewtonAscent(points, trial, value, score, curvature, damping, length)


def newton_steps(score: Tensor, curvature: Tensor, damping: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Damped steps (M, D), and the lengths of the undamped steps in the metric |H|, which are posterior SDs (M,)."""
    diagonal = curvature.diagonal(dim1=-2, dim2=-1) if curvature.dim() > score.dim() else curvature
    scale = diagonal.abs().clamp_min(torch.finfo(score.dtype).tiny).rsqrt()
    if curvature.dim() == score.dim():
        along, size = scale * score, (scale.square() * curvature).abs().clamp_min(floor)
        return scale * along / (size + damping.unsqueeze(-1)), (along.square() / size).sum(-1).sqrt()
    values, vectors = torch.linalg.eigh(scale.unsqueeze(-1) * curvature * scale.unsqueeze(-2))
    size = values.abs().clamp_min(floor)
    along = times(vectors.mT, scale * score)
    step = scale * times(vectors, along / (size + damping.unsqueeze(-1)))
    return step, (along.square() / size).sum(-1).sqrt()
