"""Many short Hamiltonian trajectories at once, in coordinates that whiten the draws from which they begin.

They are those of `ops.hamiltonian`, by steps of three scores (`THREE_STAGE`), of length π/2: at N(0, I) their ends are
independent of where they began, and one step is accurate.

Through a funnel chains alternate between these coordinates and the non-centred ones, effects in units of their own
scale (`Detour`); a transition there has the same stationary distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.audit.target import Target, near_draws
from pyro_fed.density.forms import NonCentred, noncentred_form
from pyro_fed.ops.entries import SAMPLED_ENTRIES, evenly
from pyro_fed.ops.hamiltonian import THREE_STAGE, Phase, fresh_momenta, transition
from pyro_fed.policy.audit import maps_points

#: Scores of a step.
SCORES = len(THREE_STAGE.drifts)
#: Length of a trajectory; at first, one step has it.
LENGTH = math.pi / 2
#: How much the lengths of trajectories differ.
TRAJECTORY_JITTER = 0.15
#: The most steps of a trajectory. If steps become shorter still, so does the trajectory.
MAX_STEPS = 6
#: Steps are halved until their mean acceptance is at least `WANTED_ACCEPTANCE`, or their length `SHORTEST_STEP_SHARE`
#: of the first one. The mean is over places where the draws are. With 0.8, steps that fit most of these are too long
#: for narrower places, as where a scale is large and the effects that it multiplies are small. Chains would never enter
#: these, and draws that lack them would look right.
WANTED_ACCEPTANCE, SHORTEST_STEP_SHARE = 0.9, 1 / 32


@dataclass
class Chains:
    """The state of S chains."""

    target: Target
    place: Tensor  # w (S, D)
    value: Tensor  # the log density there (S,)
    score: Tensor  # its gradient there (S, D)
    generator: torch.Generator
    shorter: float = 1.0  # ε in units of `LENGTH`
    accepted: float = 0.0  # mean acceptance of the last trajectories

    def __post_init__(self) -> None:
        self.momentum = torch.zeros_like(self.place)  # r at the beginning of the last trajectories (S, D)

    @classmethod
    def begin(cls, target: Target, place: Tensor, generator: torch.Generator) -> Chains:
        """Chains that begin at w (S, D)."""
        return cls(target, place, *target(place), generator)

    def move_to(self, place: Tensor) -> None:
        """Move the chains to other places w (S, D)."""
        self.place = place
        self.value, self.score = self.target(place)

    def shorten_steps(self) -> None:
        """One trajectory of every chain, and more with shorter steps until `WANTED_ACCEPTANCE` is reached."""
        self.move()
        while self.accepted < WANTED_ACCEPTANCE and self.shorter > SHORTEST_STEP_SHARE:
            self.shorter /= 2
            self.move()

    def move(self) -> None:
        """One trajectory of every chain."""
        momentum, length = fresh_momenta(self.place, self.generator, TRAJECTORY_JITTER)
        uniform = torch.rand(len(momentum), generator=self.generator, dtype=torch.float64)
        start = Phase(self.place, momentum, self.value, self.score)
        steps = min(round(1 / self.shorter), MAX_STEPS)
        state, _, chance = transition(start, self.target, uniform, LENGTH * self.shorter * length, steps, THREE_STAGE)
        self.place, self.value, self.score = state.position, state.value, state.score
        self.accepted, self.momentum = float(chance.mean()), momentum


@dataclass
class Detour:
    """The non-centred coordinates of a model, whitened by the draws, and chains in them."""

    form: NonCentred
    target: Target
    generator: torch.Generator
    chains: Chains | None = None

    @classmethod
    def of(cls, target: Target, draws: Tensor, generator: torch.Generator) -> Detour | None:
        """The detour for draws (S, D); None if no effect has a latent scale, or its coordinates are not finite."""
        problem = target.problem
        form = noncentred_form(problem) if maps_points(problem.traits) and not isinstance(problem, NonCentred) else None
        if form is None:
            return None
        apart = form.to_noncentred(draws[evenly(len(draws), SAMPLED_ENTRIES)].to(form.dtype)).double()
        if not bool(apart.var(0).isfinite().all()):
            return None
        there = Target.of(form, apart, target.temperature)
        if target.few is None:
            return cls(form, near_draws(there, apart), generator)

        def seen_as(white: Tensor) -> Tensor:
            return target.white(form.centred(there.model(white).to(form.dtype)))

        return cls(form, replace(there, few=replace(target.few, seen_as=seen_as)), generator)

    def white_noncentred(self, z: Tensor) -> Tensor:
        """Non-centred, whitened coordinates (S, D) of points z (S, D) in the model's own."""
        return self.target.white(self.form.to_noncentred(z.to(self.form.dtype)))

    def back(self, white: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of points in non-centred, whitened ones (S, D)."""
        return self.form.centred(self.target.model(white).to(self.form.dtype))

    def move(self, chains: Chains) -> None:
        """Move `chains`, in the model's own coordinates, by one trajectory of each in non-centred ones."""
        there = self.white_noncentred(chains.target.model(chains.place))
        if self.chains is None:
            self.chains = Chains.begin(self.target, there, self.generator)
            self.chains.shorten_steps()
        else:
            self.chains.move_to(there)
            self.chains.move()
        chains.move_to(chains.target.white(self.back(self.chains.place)))
