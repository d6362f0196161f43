"""What the audit looks at: a run's draws, and the model's densities there, each computed once and only if asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import KnownDensity
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.audit.motion import Moments, moved
from pyro_fed.audit.target import Target
from pyro_fed.conventions import seeding
from pyro_fed.density.problem import Problem
from pyro_fed.federation.federation import Federation

#: Draws that the checks look at, at most.
MOST_DRAWS = 1000


@dataclass(frozen=True)
class Evidence:
    """A run's result and all that can be asked about it.

    Args:
        algorithm: what was run.
        federation: on what; it holds the rows.
        problem: its densities, as the run compiled them.
        shared: the server's last state.
        draws: (chain, draw, D), unconstrained.
        record: what happened.
        seed: the run's seed.
    """

    algorithm: Algorithm
    federation: Federation
    problem: Problem
    shared: State
    draws: Tensor
    record: Record
    seed: int

    @cached_property
    def at(self) -> Tensor:
        """Which of the flat draws are looked at, (S,): evenly spaced, `MOST_DRAWS` at most."""
        total = self.draws.shape[0] * self.draws.shape[1]
        return torch.linspace(0, total - 1, min(MOST_DRAWS, total)).long()

    @cached_property
    def points(self) -> Tensor:
        """These draws, (S, D)."""
        return self.draws.flatten(0, 1)[self.at]

    @cached_property
    def flat(self) -> Tensor:
        """All draws, (S, D)."""
        return self.draws.flatten(0, 1)

    @cached_property
    def target(self) -> Target | None:
        """The posterior in coordinates that whiten the draws; None where these are too few, or not all numbers."""
        usable = self.algorithm.draws_are != "point" and len(self.flat) > 1 and bool(self.flat.isfinite().all())
        return Target.of(self.problem, self.flat) if usable else None

    @cached_property
    def moments(self) -> Moments | None:
        """Where the posterior's means and SDs are, by chains that begin at the draws; None where there is no target."""
        if self.target is None:
            return None
        return moved(self.target, self.flat, seeding.torch_generator(self.seed, seeding.AUDIT))

    @cached_property
    def log_density(self) -> Tensor | None:
        """What the approximation gives them, (S,), up to a constant; None where it has no known density."""
        if not isinstance(self.algorithm, KnownDensity):
            return None
        found = self.algorithm.log_density(self.shared, self.draws)
        return None if found is None else found.flatten()[self.at]
