"""Hamiltonian trajectories of many chains at once: the steps of an integrator, the energy, and the acceptance.

Source: Neal, *MCMC using Hamiltonian dynamics* (2011), Section 5.2.3 and Eq. (5.18)-(5.20); Blanes, Casas & Sanz-Serna,
*Numerical integrators for the hybrid Monte Carlo method*, SIAM J. Sci. Comput. 36 (2014).

A trajectory has fresh momenta r ~ N(0, I), n steps of size ε, and an end that is accepted or not. A step has kicks
b_0 .. b_m and drifts a_1 .. a_m. Both sequences are symmetric and sum to one:

    r ← r + b_0 ε s(θ);    θ ← θ + a_j ε r,   r ← r + b_j ε s(θ)    for j = 1 .. m
    accept with probability min(1, exp(H - H')),    H = |r|²/2 - f(θ),    s = ∇f

The last kick of a step and the first of the next are merged. A step preserves volume, and is its own inverse after a
change of the sign of r. So exp f is the exact stationary density for any ε, n, a and b that do not depend on the
position.

In coordinates A⁻¹θ the score is A's, and r drifts along A r: kicks use A's in place of s, drifts A r in place of r.

For N(0, I) a trajectory of length n ε = π/2 swaps position and momentum: its end is independent of its start. Lengths
vary at random between trajectories, to avoid resonance. The mean error in H per dimension is then 3e-4 for five steps
of `LEAPFROG`, and 5e-5 for one step of `THREE_STAGE`, which takes three scores.

Letters: θ `position`, r `momentum`, f `value`, s `score`, ε `step`, a `drifts`, b `kicks`, S chains of D numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.entries import choose

#: H' - H beyond which a trajectory has diverged, as in Pyro and Stan.
MAX_ENERGY_ERROR = 1000.0
#: Relative variation of the lengths of trajectories.
LENGTH_JITTER = 0.2

#: θ (S, D) → f (S,), s (S, D), and further values at the chains, (S, ...).
Density = Callable[[Tensor], tuple[Tensor, ...]]


class Phase(NamedTuple):
    """Positions and momenta of S chains, and the log density there."""

    position: Tensor  # θ (S, D)
    momentum: Tensor  # r (S, D)
    value: Tensor  # f (S,)
    score: Tensor  # s (S, D)
    beside: tuple[Tensor, ...] = ()  # further values that the density returns, (S, ...)

    @classmethod
    def at(cls, position: Tensor, momentum: Tensor, density: tuple[Tensor, ...]) -> Phase:
        """Chains at θ with r, and the values of a density at θ."""
        value, score, *beside = density
        return cls(position, momentum, value, score, tuple(beside))


class Splitting(NamedTuple):
    """An integrator's step."""

    kicks: tuple[float, ...]  # b, one more than drifts
    drifts: tuple[float, ...]  # a

    def stages(self, num_steps: int) -> list[tuple[float, float]]:
        """Each drift of n steps with the kick after it; `kicks[0]` precedes all."""
        inner = (*self.kicks[1:-1], self.kicks[-1] + self.kicks[0])
        kicks = inner * (num_steps - 1) + self.kicks[1:]
        return list(zip(self.drifts * num_steps, kicks, strict=True))


LEAPFROG = Splitting((0.5, 0.5), (1.0,))


def _three_stage(drift: float, kick: float) -> Splitting:
    return Splitting((kick, 0.5 - kick, 0.5 - kick, kick), (drift, 1 - 2 * drift, drift))


#: The integrator of Blanes et al. for hybrid Monte Carlo, with the smallest error at N(0, I) for long steps.
THREE_STAGE = _three_stage(0.29619504261126, 0.11888010966548)


def kicked(momentum: Tensor, score: Tensor, time: float | Tensor) -> Tensor:
    """r after a kick that lasts `time`, b ε; arguments (S, D) and (S, 1)."""
    return momentum + time * score


def drifted(position: Tensor, momentum: Tensor, time: float | Tensor) -> Tensor:
    """θ after a drift that lasts `time`, a ε; arguments (S, D) and (S, 1)."""
    return position + time * momentum


def trajectory(
    start: Phase, density: Density, step: float | Tensor, num_steps: int, splitting: Splitting = LEAPFROG
) -> Phase:
    """The end of n steps ε, one for all or (S, 1)."""
    end = start._replace(momentum=kicked(start.momentum, start.score, splitting.kicks[0] * step))
    for drift, kick in splitting.stages(num_steps):
        position = drifted(end.position, end.momentum, drift * step)
        end = Phase.at(position, end.momentum, density(position))
        end = end._replace(momentum=kicked(end.momentum, end.score, kick * step))
    return end


def fresh_momenta(like: Tensor, generator: torch.Generator, jitter: float) -> tuple[Tensor, Tensor]:
    """r (S, D), and the factors (S, 1) in 1 ± `jitter` by which the trajectories' lengths differ."""
    momentum = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    uniform = torch.rand(len(like), 1, generator=generator, dtype=torch.float64).to(like)
    return momentum, 1 + jitter * (2 * uniform - 1)


def kinetic_energy(momentum: Tensor) -> Tensor:
    """|r|²/2 (S,), float64."""
    return momentum.double().square().sum(-1) / 2


def energy_fall(value_rise: Tensor, kinetic_rise: Tensor) -> Tensor:
    """H - H' (S,) from the rises of f and |r|²/2; -inf where that is NaN."""
    return (value_rise - kinetic_rise).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def acceptance(fall: Tensor) -> Tensor:
    """The probability (S,) that an end is accepted, from H - H'."""
    return fall.exp().clamp(max=1.0)


def transition(
    start: Phase,
    density: Density,
    uniform: Tensor,
    step: float | Tensor,
    num_steps: int,
    splitting: Splitting = LEAPFROG,
) -> tuple[Phase, Tensor, Tensor]:
    """The chains after a trajectory, whether `uniform` (S,) accepts its end, and the probability of acceptance."""
    end = trajectory(start, density, step, num_steps, splitting)
    rise = end.value.double() - start.value.double()
    chance = acceptance(energy_fall(rise, kinetic_energy(end.momentum) - kinetic_energy(start.momentum)))
    accepted = uniform < chance
    position, momentum, value, score = (choose(accepted, new, old) for new, old in zip(end[:4], start[:4], strict=True))
    beside = tuple(choose(accepted, new, old) for new, old in zip(end.beside, start.beside, strict=True))
    return Phase(position, momentum, value, score, beside), accepted, chance
