"""Many short Hamiltonian trajectories at once, in coordinates that whiten the draws from which they begin.

The trajectories are those of `ops.hamiltonian`. Their length is π/2, and a step takes three scores (`THREE_STAGE`). For
N(0, I) one step of that length is accurate, and the end of a trajectory is independent of its start.

In a funnel chains alternate between these coordinates and non-centred ones, in which effects are in units of their own
scale (`Detour`). Transitions in both have the same stationary distribution.
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

#: Number of scores that a step takes.
SCORES = len(THREE_STAGE.drifts)
#: Length of a trajectory, which is at first a single step.
LENGTH = math.pi / 2
#: Relative variation of the lengths of trajectories.
TRAJECTORY_JITTER = 0.15
#: Largest number of steps of a trajectory. If steps become shorter still, so does the trajectory.
MAX_STEPS = 6
#: Steps are halved until their mean acceptance at the draws is at least `WANTED_ACCEPTANCE`, or their length is
#: `SHORTEST_STEP_SHARE` of the first one. With 0.8, steps that fit most draws would be too long for narrower places, as
#: where a scale is large and the effects that it multiplies are small. Chains would never enter these, and draws that
#: lack them would look right.
WANTED_ACCEPTANCE, SHORTEST_STEP_SHARE = 0.9, 1 / 32


@dataclass
class Chains:
    """The state of S chains."""

    target: Target
    place: Tensor  # w (S, D)
    value: Tensor  # the log density there (S,)
    score: Tensor  # its gradient there (S, D)
    generator: torch.Generator
    shorter: float = 1.0  # step size ε in units of `LENGTH`
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
        """Move every chain by one trajectory, then by more with halved steps until `WANTED_ACCEPTANCE` is reached."""
        self.move()
        while self.accepted < WANTED_ACCEPTANCE and self.shorter > SHORTEST_STEP_SHARE:
            self.shorter /= 2
            self.move()

    def move(self) -> None:
        """Move every chain by one trajectory."""
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
        """The detour for draws (S, D); None if no effect has a latent scale, or the coordinates are not finite."""
        problem = target.problem
        form = noncentred_form(problem) if maps_points(problem.traits) and not isinstance(problem, NonCentred) else None
        if form is None:
            return None
        noncentred = form.to_noncentred(draws[evenly(len(draws), SAMPLED_ENTRIES)].to(form.dtype)).double()
        if not bool(noncentred.var(0).isfinite().all()):
            return None
        noncentred_target = Target.of(form, noncentred, target.temperature)
        if target.few is None:
            return cls(form, near_draws(noncentred_target, noncentred), generator)

        def correction_coordinates(white: Tensor) -> Tensor:
            return target.white(form.centred(noncentred_target.model(white).to(form.dtype)))

        return cls(
            form,
            replace(noncentred_target, few=replace(target.few, correction_coordinates=correction_coordinates)),
            generator,
        )

    def white_noncentred(self, z: Tensor) -> Tensor:
        """Non-centred, whitened coordinates (S, D) of points z (S, D) in the model's own coordinates."""
        return self.target.white(self.form.to_noncentred(z.to(self.form.dtype)))

    def back(self, white: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of points in non-centred, whitened coordinates (S, D)."""
        return self.form.centred(self.target.model(white).to(self.form.dtype))

    def move(self, chains: Chains) -> None:
        """Move each of `chains`, in the model's own coordinates, by one trajectory in non-centred ones."""
        noncentred = self.white_noncentred(chains.target.model(chains.place))
        if self.chains is None:
            self.chains = Chains.begin(self.target, noncentred, self.generator)
            self.chains.shorten_steps()
        else:
            self.chains.move_to(noncentred)
            self.chains.move()
        chains.move_to(chains.target.white(self.back(self.chains.place)))
