"""Annealed importance sampling from a Gaussian: weighted draws of another density.

Source: Neal (2001), *Annealed importance sampling*; Duane et al. (1987), *Hybrid Monte Carlo*.

    log π_β(z) = -|z|²/2 + (1 - β) b(z) + β d(z),   β = j / J,   π_0 = N(0, I) exp b, most often with b = 0
    z_0 ~ π_0;   log w += (d - b)(z_{j-1}) / J,   z_j by a Hamiltonian transition that leaves π_{j/J} invariant

for j = 1 .. J.

The weights correct for transitions that do not mix: E w f(z_J) = ∫ π_1 f for any J, step and length.

If transitions mix, the J terms of log w are independent with variance Var d / J² each, so that log w has variance
Var d / J. Var d is under π_0 for the first term and under π_1 for the last. The latter is estimated by weights exp d:
if d has a long tail there, they show it, and J is large. For most targets this is an upper bound: Var d decreases along
the path, and strongly so if only tails differ. So a share of J is tried first (`anneal_sparingly`), and the weights
show whether it suffices.

Letters: z `white`, d `difference`, b `base`, J `levels`, w `log_weights`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.hamiltonian import LENGTH_JITTER, Phase, fresh_momenta, transition

#: Share of the levels that is tried first, and the relative effective sample size at which it suffices: all levels
#: would take five times as long for at most a third more effective draws.
FIRST_SHARE, SUFFICIENT_ESS_SHARE = 0.2, 0.75
#: A value (S,) and its gradient (S, D).
Slope = tuple[Tensor, Tensor]
#: z (S, D) → d and ∇d.
Difference = Callable[[Tensor], Slope]
#: z (S, D) → d and ∇d, b and ∇b.
Ends = Callable[[Tensor], tuple[Slope, Slope]]


def from_normal(difference: Difference) -> Ends:
    """d with its gradient, and b = 0: annealing from N(0, I) itself."""

    def ends(white: Tensor) -> tuple[Slope, Slope]:
        return difference(white), (torch.zeros_like(white[:, 0]), torch.zeros_like(white))

    return ends


class Annealed(NamedTuple):
    """Draws (S, D), their log weights (S,) in float64, and the share of transitions that were accepted, ()."""

    white: Tensor
    log_weights: Tensor
    accepted: Tensor


def _parts(ends: Ends, white: Tensor) -> tuple[Tensor, ...]:
    """d, ∇d, b and ∇b."""
    difference, base = ends(white)
    return *difference, *base


def _on_path(white: Tensor, parts: tuple[Tensor, ...], beta: float) -> tuple[Tensor, ...]:
    """log π_β (S,), float64, its gradient (S, D), and the `parts` they are computed from."""
    value, slope, base, base_slope = parts
    log_density = beta * value.double() + (1 - beta) * base.double() - white.double().square().sum(-1) / 2
    return log_density, beta * slope + (1 - beta) * base_slope - white, *parts


def anneal(
    ends: Ends,
    white: Tensor,
    generator: torch.Generator,
    *,
    levels: int,
    leapfrog_steps: int,
    step_size: float,
    axes: Tensor | None = None,
) -> Annealed:
    """Weighted draws of exp(-|z|²/2 + d(z)) from draws of π_0 (S, D), in J levels; momenta along `axes`."""
    parts = _parts(ends, white)
    log_weights = torch.zeros(len(white), dtype=torch.float64, device=white.device)
    share = log_weights.new_zeros(())
    for level in range(1, levels + 1):
        beta = level / levels
        log_weights = log_weights + (parts[0] - parts[2]).double() / levels
        momentum, length = fresh_momenta(white, generator, LENGTH_JITTER)
        start = Phase.at(white, momentum if axes is None else momentum @ axes, _on_path(white, parts, beta))
        uniform = torch.rand(len(white), generator=generator).to(white.device)
        density = partial(_density_on_path, ends, beta)
        state, accepted, _ = transition(start, density, uniform, step_size * length, leapfrog_steps)
        white, parts = state.position, state.beside
        share = share + accepted.double().mean() / levels
    return Annealed(white, log_weights, share)


def _density_on_path(ends: Ends, beta: float, white: Tensor) -> tuple[Tensor, ...]:
    return _on_path(white, _parts(ends, white), beta)


def anneal_sparingly(ends: Ends, white: Tensor, generator: torch.Generator, *, levels: int, **how: Any) -> Annealed:
    """`anneal` by `FIRST_SHARE` of the levels if the relative ESS reaches `SUFFICIENT_ESS_SHARE`; else by all."""
    for number in sorted({math.ceil(FIRST_SHARE * levels), levels}):
        annealed = anneal(ends, white, generator, levels=number, **how)
        weights = annealed.log_weights.softmax(0)
        if float(1 / weights.square().sum()) >= SUFFICIENT_ESS_SHARE * len(weights):
            break
    return annealed


def levels_for(value: Tensor, spread: float) -> int:
    """The number of levels J for which log w has the variance `spread`; `value` is d at draws of π_0, (S,)."""
    shares = torch.stack([torch.zeros_like(value), value]).double().softmax(-1)
    means = (shares * value).sum(-1, keepdim=True)
    variance = float((shares * (value - means).square()).sum(-1).amax())
    return max(1, math.ceil(variance / spread)) if math.isfinite(variance) else sys.maxsize
