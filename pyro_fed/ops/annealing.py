"""Annealed importance sampling: draws of a density by way of a Gaussian, with weights that are right whatever mixes.

Source: Neal (2001), *Annealed importance sampling*; Duane et al. (1987), *Hybrid Monte Carlo*.

    log π_β(z) = log π_0(z) + β d(z),   β = j / J,    d = log π_1 - log π_0
    z_0 ~ π_0;   log w += d(z_{j-1}) / J,   z_j by a Hamiltonian transition that leaves π_{j/J} as it is,   j = 1 .. J

π_0 is N(0, I), or a multivariate t-distribution in its place, whose draws reach further.

The weights make up for transitions that have not mixed: E w f(z_J) = ∫ π_1 f for any J, step and length. Steps are
varied at random, so that no trajectory is a whole period.

Letters: z `white`, d `difference`, J `levels`, w `log_weights`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.special import gammaincinv
from torch import Tensor

from pyro_fed.ops.entries import choose

#: Uniform numbers that have a finite quantile.
WITHIN = (2.0**-53, 1 - 2.0**-53)
#: Steps lie within this share of the one that was asked for.
JITTER = 0.2

#: z (S, D) → d (S,) and ∇d (S, D).
Difference = Callable[[Tensor], tuple[Tensor, Tensor]]


class Annealed(NamedTuple):
    """Draws (S, D), their log weights (S,) in float64, and the share of transitions that were accepted, ()."""

    white: Tensor
    log_weights: Tensor
    accepted: Tensor


class Base(NamedTuple):
    """π_0: a t-distribution of location 0, scale s and ν degrees of freedom in all directions; infinite ν: a Gaussian.

    Its draws reach where a target's tails are, which those of a Gaussian of the target's width do not.
    """

    freedom: float = math.inf
    scale: float = 1.0

    def draw(self, count: int, dim: int, generator: torch.Generator) -> Tensor:
        """Draws (count, dim), float64."""
        normal = torch.randn(count, dim, generator=generator, dtype=torch.float64)
        if math.isinf(self.freedom):
            return self.scale * normal
        uniform = torch.rand(count, 1, generator=generator, dtype=torch.float64).clamp(*WITHIN)
        chi_square = 2 * torch.from_numpy(gammaincinv(self.freedom / 2, uniform.numpy()))
        return self.scale * normal * (self.freedom / chi_square).sqrt()

    def log_density(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log π_0 (S,), normalised, and its gradient (S, D) at z (S, D)."""
        dim, squared = z.shape[-1], z.double().square().sum(-1) / self.scale**2
        constant = -dim * (0.5 * math.log(2 * math.pi) + math.log(self.scale))
        if math.isinf(self.freedom):
            return constant - squared / 2, -z / self.scale**2
        weight = self.freedom + dim
        constant += math.lgamma(weight / 2) - math.lgamma(self.freedom / 2) - dim / 2 * math.log(self.freedom / 2)
        slope = -weight / (self.freedom + squared).unsqueeze(-1) * z / self.scale**2
        return constant - weight / 2 * torch.log1p(squared / self.freedom), slope


#: N(0, I).
GAUSSIAN = Base()


class _State(NamedTuple):
    white: Tensor
    value: Tensor
    slope: Tensor


def anneal(
    difference: Difference,
    white: Tensor,
    generator: torch.Generator,
    *,
    levels: int,
    leapfrog_steps: int,
    step_size: float,
    base: Base = GAUSSIAN,
) -> Annealed:
    """From draws of π_0 to weighted draws of exp(log π_0(z) + d(z)).

    Args:
        difference: d and its gradient.
        white: independent draws of π_0, (S, D).
        generator: of momenta, steps and acceptances.
        levels: J, at least 1.
        leapfrog_steps: of a transition, at least 1.
        step_size: of the leapfrog, in SDs of the Gaussian.
        base: π_0.
    """
    state = _State(white, *difference(white))
    log_weights = torch.zeros(len(white), dtype=torch.float64, device=white.device)
    accepted = log_weights.new_zeros(())
    for level in range(1, levels + 1):
        log_weights = log_weights + state.value.double() / levels
        proposed, gain = _trajectory(difference, state, level / levels, generator, leapfrog_steps, step_size, base)
        taken = torch.rand(len(white), generator=generator).to(white.device).log() < gain  # NaN is refused
        state = _State(*(choose(taken, new, old) for new, old in zip(proposed, state, strict=True)))
        accepted = accepted + taken.double().mean() / levels
    return Annealed(state.white, log_weights, accepted)


def _trajectory(
    difference: Difference,
    start: _State,
    beta: float,
    generator: torch.Generator,
    length: int,
    step_size: float,
    base: Base,
) -> tuple[_State, Tensor]:
    """The end of a Hamiltonian trajectory, and the fall of its energy, (S,)."""
    shape, like = start.white.shape, start.white
    momentum = torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
    spread = 2 * torch.rand(len(like), 1, generator=generator, dtype=torch.float64).to(like) - 1
    step = step_size * (1 + JITTER * spread)
    before = _energy(start, momentum, beta, base)
    state = start
    momentum = momentum + step / 2 * _force(state, beta, base)
    for i in range(length):
        white = state.white + step * momentum
        state = _State(white, *difference(white))
        momentum = momentum + (step if i + 1 < length else step / 2) * _force(state, beta, base)
    return state, before - _energy(state, momentum, beta, base)


def _force(state: _State, beta: float, base: Base) -> Tensor:
    return beta * state.slope + base.log_density(state.white)[1]


def _energy(state: _State, momentum: Tensor, beta: float, base: Base) -> Tensor:
    kinetic = momentum.double().square().sum(-1) / 2
    return kinetic - base.log_density(state.white)[0] - beta * state.value.double()
