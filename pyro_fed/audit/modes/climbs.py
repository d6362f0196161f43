"""Climbs of the log density f, and the modes where they end.

Climbs are BFGS in the result's whitened coordinates,

    w ← w + α B ∇f(w),     B an inverse curvature from the score's changes along the way,  α halved until f rises

and some of the draws climb with them, to the modes that the result has. Where a climb ends with |∇f| small, and the
curvature H there (differences of scores) is positive definite, there is a mode, of mass

    log M = f - log |H| / 2                                            (Laplace)

up to a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.target import Target

#: Steps of a climb, and the gradient's length, in the metric of B, at which it has arrived.
CLIMB, ARRIVED = 60, 0.05
#: Longest step, in the result's SDs (from far away a quarter of the distance), and how often it is cut to a fifth.
LONGEST, SHORTENED = 3.0, 6
#: Modes nearer to each other than this, in the SDs of either, are one; draws nearer to a mode than that have seen it.
NEAR = 2.0
#: Half the distance over which scores are compared for the curvature, in the result's SDs.
APART = 1e-3
#: More parameters than this are not searched: a curvature there costs as many scores.
LARGEST_DIM = 50


@dataclass(frozen=True)
class Mode:
    """A maximum.

    Args:
        at: w (D,).
        log_mass: log M.
        precision: H (D, D).
    """

    at: Tensor
    log_mass: float
    precision: Tensor

    @property
    def height(self) -> float:
        """f, the log density at its top."""
        return self.log_mass + float(torch.linalg.slogdet(self.precision)[1]) / 2

    def distance(self, white: Tensor) -> Tensor:
        """Of points w (S, D), in SDs of this mode: (S,)."""
        away = white - self.at
        return torch.einsum("sd,de,se->s", away, self.precision, away).clamp_min(0).sqrt()


def same(one: Mode, other: Mode) -> bool:
    """Whether two modes are one, nearer to each other than `NEAR` of either's SDs."""
    return min(float(one.distance(other.at[None])), float(other.distance(one.at[None]))) < NEAR


def climbed(target: Target, start: Tensor) -> tuple[Tensor, Tensor]:
    """Where climbs from w (M, D) end, (M, D), and which of them have arrived, (M,)."""
    w = start
    value, score = target(w)
    count, dim = w.shape
    inverse = torch.eye(dim, dtype=w.dtype).repeat(count, 1, 1)
    step = torch.ones(count, dtype=w.dtype)
    longest = torch.full((count, 1), LONGEST, dtype=w.dtype)
    left_over = torch.full_like(step, torch.inf)
    for _ in range(CLIMB):
        direction = (inverse @ score[..., None])[..., 0]
        length = direction.norm(dim=1, keepdim=True)
        direction = direction * (torch.maximum(w.norm(dim=1, keepdim=True) / 4, longest) / length).clamp(max=1.0)
        trial = w + step[:, None] * direction
        risen, slope = target(trial)
        rose = (risen >= value) & risen.isfinite()
        s, y = trial - w, score - slope
        along = (s * y).sum(1)
        good = rose & (along > 1e-10 * s.norm(dim=1) * y.norm(dim=1))
        rho = torch.where(good, 1 / along, 0.0)[:, None, None]
        left = torch.eye(dim, dtype=w.dtype) - rho * s[:, :, None] * y[:, None, :]
        updated = left @ inverse @ left.mT + rho * s[:, :, None] * s[:, None, :]
        inverse = torch.where(good[:, None, None], updated, inverse)
        # A direction that does not rise even when it is short is forgotten.
        lost = ~rose & (step < 0.2**SHORTENED)
        inverse = torch.where(lost[:, None, None], torch.eye(dim, dtype=w.dtype), inverse)
        step = torch.where(rose | lost, 1.0, step / 5)
        w = torch.where(rose[:, None], trial, w)
        value = torch.where(rose, risen, value)
        score = torch.where(rose[:, None], slope, score)
        left_over = (score * (inverse @ score[..., None])[..., 0]).sum(1).clamp_min(0).sqrt()
        if bool((left_over < ARRIVED).all()):
            break
    return w, (left_over < ARRIVED) & value.isfinite()


def mode_at(target: Target, w: Tensor) -> Mode | None:
    """The mode at w (D,), polished by a Newton step; None where the curvature is not positive definite."""
    dim = len(w)
    eye = torch.eye(dim, dtype=w.dtype) * APART
    for _ in range(2):
        _, score = target(torch.cat([w + eye, w - eye]))
        gap = -(score[:dim] - score[dim:]) / (2 * APART)
        precision = (gap + gap.T) / 2
        factor, info = torch.linalg.cholesky_ex(precision)
        if int(info):
            return None
        step = torch.cholesky_solve(target(w[None])[1].T, factor)[:, 0]
        if float((precision @ step) @ step) > 1:
            return None
        w = w + step
    value = float(target(w[None])[0])
    if not math.isfinite(value):
        return None
    return Mode(w, value - float(factor.diagonal().log().sum()), precision)
