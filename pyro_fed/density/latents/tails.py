"""Nodes for one latent a row whose density has tails beyond those of a Gaussian with its curvature.

In its logit x the density of a Beta(a, b) of small a is proportional to exp(a x) in the left tail, of width 1 / a, and
drops at the other end over a width of one. The logarithm of a Gamma of small shape is similar. The nodes are those of
the trapezoidal rule in t for

    x = c + s sinh t,    ∫ exp f dx ≈ h s Σ_k exp(f(x_k)) cosh t_k,    t_k from `low` to `high` in steps of h

This change of variable turns exponential tails into double exponential tails, and power tails into exponential tails.
The error is of order exp(-2π d / h), where d is the width of the strip in which the integrand is analytic (Takahasi &
Mori 1974; Trefethen & Weideman 2014).

The centre c and the scale s are those of the sharper flank; at `low` and `high` the integrand has fallen to rounding.
All four come from the densities along a coarse line of such points, evaluated twice, and once more at its ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: The coarse line: so many points on either side of t = 0, and the distance between them in t.
POINTS_PER_SIDE, STEP = 18, 2 / 3
#: A flank is where the log density has fallen by at least the first of these, and not yet by the second; falls are
#: followed to the last, beyond all that is cut off.
FLANK_START, FLANK_END, MAX_FLANK_FALL = 1.0, 4.0, 64.0
#: Places between two points of the coarse line at which the end of the integrand is looked for; and how far beyond the
#: end its last node may be, as a multiple of the fall there.
PLACES_BETWEEN_POINTS, MAX_REACH_FALLS = 8, 3.0
#: How far the log of the integrand falls to its ends: so much for each node, and no further than to rounding, so that
#: what is cut off is like the error of the nodes.
CUT_OFF_FALL = 0.8
#: The largest SD by a curvature that is believed; and the smallest scale, as a multiple of the one before.
MAX_CURVATURE_SD, MIN_SCALE_RATIO = 50.0, 1e-4


class Line(NamedTuple):
    """The line of nodes of m rows, x = centre + scale sinh t, t from low to high: each (m,)."""

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def at(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """A place of each row at a share of the way from low to high, and the log of dx/dt there: (..., m) each."""
        t = self.low + share * (self.high - self.low)
        return self.centre + self.scale * t.sinh(), self.scale.log() + log_cosh(t)

    def log_step(self, order: int) -> Tensor:
        """The log of the distance between `order` nodes in t, (m,)."""
        return ((self.high - self.low) / (order - 1)).log()


class Profile(NamedTuple):
    """A density along m rows' nodes: where these are, and the log of density times dx/dt at each, (Q, m)."""

    line: Line
    log_weight: Tensor

    def inverse(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, log dx/dt and log density in t (K, m), by the mass to the left, if density is linear between nodes."""
        weight = (self.log_weight - self.log_weight.amax(0)).exp().clamp_min(torch.finfo(uniform.dtype).tiny)
        part = 0.5 * (weight[1:] + weight[:-1])
        below = part.cumsum(0) / part.sum(0)
        segment = (uniform.unsqueeze(1) >= below[:-1]).sum(1)
        below = torch.cat([torch.zeros_like(below[:1]), below])
        start = below.gather(0, segment)
        share = ((uniform - start) / (below.gather(0, segment + 1) - start)).nan_to_num(nan=0.5).clamp(0, 1)
        left, right = weight.gather(0, segment), weight.gather(0, segment + 1)
        along = share * (left + right) / (left + (left.square() + share * (right.square() - left.square())).sqrt())
        along = along.nan_to_num(nan=0.5).clamp(0, 1)
        place, log_slope = self.line.at((segment + along) / (len(weight) - 1))
        return place, log_slope, (left + along * (right - left)).log()


def log_cosh(t: Tensor) -> Tensor:
    """log cosh t, without overflow."""
    return t.abs() + torch.log1p((-2 * t.abs()).exp()) - math.log(2)


def line(look: Callable[[Tensor], Tensor], mode: Tensor, sd: Tensor, order: int) -> Line:
    """The line for `order` nodes, from log densities at places (K, m), the modes and the SDs by curvature (m,)."""
    t = STEP * torch.arange(-POINTS_PER_SIDE, POINTS_PER_SIDE + 1, dtype=mode.dtype, device=mode.device).unsqueeze(-1)
    fall = min(CUT_OFF_FALL * order, -math.log(torch.finfo(mode.dtype).eps))
    centre, scale = mode, sd.clamp_max(MAX_CURVATURE_SD)
    for _ in range(2):
        before = (centre, scale)
        places = centre + scale * t.sinh()
        values = _finite_or_minus_infinity(look(places))
        centre, scale = _flank(places, values, scale)
    fallen = _falls_below_highest(values + log_cosh(t))
    inside = fallen <= fall
    at = torch.arange(len(t), device=mode.device).unsqueeze(-1)
    first = torch.where(inside, at, len(t)).amin(0)
    last = torch.where(inside, at, -1).amax(0)
    numbers = torch.arange(1, PLACES_BETWEEN_POINTS + 1, dtype=mode.dtype, device=mode.device)
    share = numbers.unsqueeze(-1) / PLACES_BETWEEN_POINTS
    outwards = STEP * torch.stack([-share, share])
    found = torch.stack([first, last])
    t_ends = STEP * (found - POINTS_PER_SIDE).to(mode.dtype)
    trials = t_ends.unsqueeze(1) + outwards  # (2, BETWEEN, m)
    there = before[0] + before[1] * trials.sinh()
    seen = _finite_or_minus_infinity(look(there.flatten(0, 1))).unflatten(0, (2, PLACES_BETWEEN_POINTS))
    level = (values + log_cosh(t)).amax(0)
    deep = level - seen - log_cosh(trials)
    # The first place beyond the fall, or the last before it where the former is far below.
    index = torch.arange(PLACES_BETWEEN_POINTS, device=mode.device).unsqueeze(-1)
    beyond = torch.where(deep > fall, index, PLACES_BETWEEN_POINTS - 1).amin(1)
    too_deep = deep.gather(1, beyond.unsqueeze(1)).squeeze(1) > MAX_REACH_FALLS * fall
    steps = torch.where(too_deep, beyond, beyond + 1)
    sides = torch.tensor([[-1.0], [1.0]], dtype=mode.dtype, device=mode.device)
    ends = t_ends + steps * STEP / PLACES_BETWEEN_POINTS * sides
    low, high = torch.asinh((before[0] + before[1] * ends.sinh() - centre) / scale)
    return Line(centre, scale, low, high)


def _finite_or_minus_infinity(values: Tensor) -> Tensor:
    """Log densities with -inf for overflows: a Gamma density of small shape is infinite if exp x rounds to 0."""
    return torch.where(values < torch.inf, values, -torch.inf)


def _falls_below_highest(values: Tensor) -> Tensor:
    """Differences of values (K, m) from the highest, at most `MAX_FLANK_FALL`."""
    return (values.amax(0) - values).nan_to_num(nan=MAX_FLANK_FALL).clamp_max(MAX_FLANK_FALL)


def _flank(places: Tensor, values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The centre and scale of the sharper flank (m,) of log densities (K, m) at ascending places."""
    top = values.argmax(0)
    peak = places.gather(0, top.unsqueeze(0)).squeeze(0)
    fallen = _falls_below_highest(values)
    (right, rise), (left, descent) = (_side(places, fallen, top, sign) for sign in (1, -1))
    ratio = (rise / descent).nan_to_num(nan=1.0)
    shift = torch.where(ratio <= 1, right * (1 - ratio), left * (1 / ratio - 1))
    sharp = torch.minimum(torch.minimum(rise, descent), 0.5 * (right + left))
    sharp = torch.where(sharp.isfinite(), sharp, 10 * scale)
    return peak + shift.nan_to_num(nan=0.0), torch.maximum(sharp, MIN_SCALE_RATIO * scale)


def _side(places: Tensor, fallen: Tensor, top: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """Distances from the highest point to a shallow fall, and on to a deep fall (m,); infinite if there is none."""
    if sign < 0:
        places, fallen, top = places.flip(0), fallen.flip(0), len(places) - 1 - top
    at = torch.arange(len(places), device=places.device).unsqueeze(-1)
    peak = places.gather(0, top.unsqueeze(0))

    def crossing(depth: float) -> tuple[Tensor, Tensor]:
        first = torch.where((at > top) & (fallen > depth), at, len(places)).amin(0, keepdim=True)
        there = first < len(places)
        first = first.clamp_max(len(places) - 1)
        before = (first - 1).clamp_min(0)
        low, high = fallen.gather(0, before), fallen.gather(0, first)
        share = ((depth - low) / (high - low)).nan_to_num(nan=1.0).clamp(0, 1)
        near, far = places.gather(0, before), places.gather(0, first)
        return ((near + share * (far - near) - peak).abs()).squeeze(0), there.squeeze(0)

    (shallow, is_shallow), (deep, is_deep) = crossing(FLANK_START), crossing(FLANK_END)
    return torch.where(is_shallow, shallow, (places[-1] - peak[0]).abs()), torch.where(
        is_deep, deep - shallow, torch.inf
    )
