"""Hamiltonian trajectories of many chains, in coordinates in which the posterior is about N(0, I).

Source: Neal, *MCMC using Hamiltonian dynamics* (2011), Eq. (5.18)-(5.20) and Section 5.3.2. In w = A⁻¹θ, with fresh
momenta r ~ N(0, I) and s the gradient of the log density f in θ, a trajectory is n leapfrog steps of length ε,

    r ← r + ε/2 A's(θ),    θ ← θ + ε A r,    r ← r + ε/2 A's(θ)                                              (1)

and its end is accepted with probability min(1, exp(H - H')), H = |r|²/2 - f(θ), as `ops.hamiltonian` has it: f is the
exact stationary density whatever ε, n and A are, as long as they do not depend on where the trajectory is.

For N(0, I) in D dimensions a quarter of a turn, n ε = π/2, swaps θ and r, and H' - H has the mean μ = D ε⁴ / 32 and
about the variance 2 μ. The mean acceptance is then

    a = 2 Φ(-√(μ/2))                                                                                        (2)

by which ε follows from a wanted acceptance: before the first trajectory by D, and later, as √μ grows with ε², by the
acceptance that was observed.

Letters: f `value`, s `score`, r `momentum`, ε `step`, A `factor`. `HmcState` is the server's state of `FedHMC`.
"""

from __future__ import annotations

import math
import sys
from statistics import NormalDist
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.infer.langevin.chains import DRAWS_PER_EFFECTIVE, ChainStore, Draws
from pyro_fed.ops.hamiltonian import MAX_ENERGY_ERROR, drifted, energy_fall, kicked, kinetic_energy
from pyro_fed.ops.matrices import times, times_transposed

#: The largest factor by which a step changes at once.
MAX_STEP_CHANGE = 2.0
#: The longest step: two is the end of stability at N(0, I).
MAX_STEP = 1.5
#: The most steps of a trajectory: shorter steps than this needs make shorter trajectories.
MAX_STEPS = 100


class Trajectory(NamedTuple):
    """Trajectories of M chains, in the middle of their steps."""

    start: Tensor  # θ where they began, (M, D), float64 as all others
    value: Tensor  # f there, (M,)
    score: Tensor  # s there, (M, D)
    kinetic: Tensor  # |r|²/2 there, (M,)
    point: Tensor  # θ of which s is needed next, (M, D)
    momentum: Tensor  # r, after its half step, (M, D)
    step: Tensor  # ε of each, (M, 1)
    steps_left: Tensor  # n less the steps that are done, ()

    @classmethod
    def waiting(cls, start: Tensor) -> Trajectory:
        """Chains at θ (M, D) of unknown density: that of the first answer is accepted where it is finite."""
        zero, none = torch.zeros_like(start), start.new_zeros(len(start))
        return cls(start, none - torch.inf, zero, none, start, zero, none[:, None], torch.tensor(1))

    def inside(self) -> Trajectory:
        """The chains, of which those where the density is zero begin where others do, in turn."""
        here = self.value.isfinite()
        if bool(here.all()) or not bool(here.any()):
            return self
        others = here.nonzero()[:, 0]
        from_chain = torch.arange(len(here))
        from_chain[~here] = others[torch.arange(int((~here).sum())) % len(others)]
        return self._replace(start=self.start[from_chain], value=self.value[from_chain], score=self.score[from_chain])

    def launched(self, momentum: Tensor, step: Tensor, num_steps: int, factor: Tensor) -> Trajectory:
        """New trajectories from `start`, up to the first point of which a score is needed."""
        half = kicked(momentum, times_transposed(factor[None], self.score), step / 2)
        point = drifted(self.start, times(factor[None], half), step)
        kinetic = kinetic_energy(momentum)
        begun = {"kinetic": kinetic, "point": point, "momentum": half, "step": step}
        return self._replace(**begun, steps_left=torch.tensor(num_steps))._without_lost()

    def stepped(self, score: Tensor, factor: Tensor) -> Trajectory:
        """The trajectories one step of Eq. (1) on, which is not the last, with the `score` (M, D) at `point`."""
        momentum = kicked(self.momentum, times_transposed(factor[None], score), self.step)
        point = drifted(self.point, times(factor[None], momentum), self.step)
        return self._replace(point=point, momentum=momentum, steps_left=self.steps_left - 1)._without_lost()

    def _without_lost(self) -> Trajectory:
        """The trajectories, of which those beyond all numbers stand still where they began, and are rejected there."""
        near = self.point.abs().amax(-1) < torch.finfo(torch.float32).max  # not of a NaN
        return self._replace(
            point=torch.where(near[:, None], self.point, self.start),
            momentum=torch.where(near[:, None], self.momentum, 0.0),
            step=torch.where(near[:, None], self.step, 0.0),
            kinetic=torch.where(near, self.kinetic, -2 * MAX_ENERGY_ERROR),
        )

    def energy_gain(self, value: Tensor, score: Tensor, factor: Tensor) -> Tensor:
        """H - H' (M,) of trajectories that end at `point`; -inf where the density is zero or not a number."""
        momentum = kicked(self.momentum, times_transposed(factor[None], score), self.step / 2)
        return energy_fall(value - self.value, kinetic_energy(momentum) - self.kinetic)

    def accepted(self, accept: Tensor, value: Tensor, score: Tensor) -> Trajectory:
        """The chains at their ends where these are accepted, (M,), and where they began elsewhere."""
        return self._replace(
            start=torch.where(accept[:, None], self.point, self.start),
            value=torch.where(accept, value, self.value),
            score=torch.where(accept[:, None], score, self.score),
        )


def first_step(dim: int, acceptance: float) -> float:
    """ε at N(0, I) by Eq. (2)."""
    return min(MAX_STEP, math.sqrt(8 * -NormalDist().inv_cdf(acceptance / 2) / math.sqrt(dim)))


def retuned_step(step: float, observed: float, wanted: float) -> float:
    """ε after trajectories of a mean acceptance, by Eq. (2) with another μ / ε⁴."""

    def root(acceptance: float) -> float:
        """√(μ/2)."""
        inside = min(max(acceptance, sys.float_info.min), 1 - sys.float_info.epsilon)
        return -NormalDist().inv_cdf(inside / 2)

    change = math.sqrt(root(wanted) / root(observed))
    return min(MAX_STEP, step * min(max(change, 1 / MAX_STEP_CHANGE), MAX_STEP_CHANGE))


def steps_of(length: float, step: float) -> int:
    """Number of leapfrog steps of a trajectory."""
    return min(MAX_STEPS, max(1, round(length / step)))


def retuned_factor(factor: Tensor, draws: Tensor) -> Tensor:
    """A of the covariance of draws (S, D), with the present one as if of D draws, of the structure of `factor`."""
    # trajectories of early windows are not independent of each other
    count, dim = len(draws) / DRAWS_PER_EFFECTIVE, draws.shape[-1]
    weight = count / (count + dim)
    away = draws - draws.mean(0)
    if factor.dim() == 1:
        return (weight * away.square().mean(0) + (1 - weight) * factor.square()).sqrt()
    root: Tensor = torch.linalg.cholesky(weight * away.mT @ away / len(draws) + (1 - weight) * factor @ factor.mT)
    return root


class HmcState(NamedTuple):
    """The server's state."""

    chains: ChainStore  # where the chains are, and the draws of the last window and of this one
    trajectory: Annotated[Trajectory, "trajectory."]  # the present trajectories
    factor: Tensor  # A, (D, D) or its diagonal (D,), float64
    step_size: Tensor  # ε before each chain's own factor, ()
    window: Tensor  # number of this window, from 0, ()
    done: Tensor  # finished trajectories of this window, ()
    acceptance: Tensor  # the sum of their mean acceptances, ()
    diverged: Tensor  # number of chains' trajectories that diverged in the last window and in this one, (2,)
    prior_value: Tensor  # log p_0 at the trajectories' points, (M,)
    prior_score: Tensor  # its gradient, (M, D)
    num_clients: Tensor  # K
    key: Tensor  # the seed of all randomness

    @classmethod
    def begin(cls, position: Tensor, factor: Tensor, step: float, num_clients: int, key: Tensor) -> HmcState:
        """Chains at θ (M, D) before their first round."""
        start = position.double()
        none = torch.tensor(0)
        return cls(
            chains=ChainStore.begin(position),
            trajectory=Trajectory.waiting(start),
            factor=factor.double(),
            step_size=start.new_tensor(step),
            window=none,
            done=none,
            acceptance=start.new_zeros(()),
            diverged=torch.zeros(2, dtype=torch.int64),
            prior_value=start.new_zeros(len(start)),
            prior_score=torch.zeros_like(start),
            num_clients=torch.tensor(num_clients),
            key=key,
        )

    def points(self) -> Tensor:
        """Where the clients are asked next, (M, D), in the model's dtype."""
        return self.trajectory.point.to(self.chains.position.dtype)

    def with_draws(self, wanted: int) -> HmcState:
        """The chains where their trajectories have ended, as one more draw of each."""
        t = self.trajectory
        position = t.start.to(self.chains.position.dtype)
        one = position.new_ones(len(position), 1)
        draws = Draws(position[:, None], -one, t.score.norm(dim=-1, keepdim=True), t.step)
        chains = self.chains._replace(position=position, steps=self.chains.steps + 1).append(draws, wanted)
        return self._replace(chains=chains)

    def next_window(self, step: float, factor: Tensor) -> HmcState:
        """The state at the beginning of a new window, with the draws of the one before; the first window's are left."""
        length = int(self.done) if int(self.window) else 0
        kept, unknown = int(self.chains.kept), torch.tensor(float("nan"))
        recent = Draws(*(buffer[:, kept - length : kept].clone() for buffer in self.chains.buffers))
        chains = ChainStore.begin(self.chains.position)._replace(steps=self.chains.steps)
        if length:
            chains = chains.append(recent)._replace(r_hat=unknown, ess=unknown, judged=torch.tensor(0))
        return self._replace(
            chains=chains,
            factor=factor,
            step_size=self.step_size.new_tensor(step),
            window=self.window + 1,
            done=torch.zeros_like(self.done),
            acceptance=torch.zeros_like(self.acceptance),
            diverged=torch.stack([self.diverged[1] * bool(length), torch.zeros_like(self.diverged[1])]),
        )
