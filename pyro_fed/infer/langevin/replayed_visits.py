"""Chains whose visits the server replays to the Gaussian of all sites, with the clients' own random numbers.

It is what `FSGLD` and `FALD` judge a visit by: how far it moved the answer, and what `Bounded` leaves of it. The
equations are those of `held_visits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.contributions import VisitContributions
from pyro_fed.infer.langevin.held_visits import reference
from pyro_fed.infer.langevin.visiting import VisitingLangevin


@dataclass(frozen=True, kw_only=True)
class ReplayedVisits(VisitingLangevin):
    """Visits beside the same visits to the surrogates. Arguments are those of `VisitingLangevin`."""

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """As `Langevin` has it, and what visits are compared with: the surrogates' Gaussian, the cohort's errors."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.contributions().bounding_obstacle():
            return shared, local
        mismatch = None if start is None else start.shared.get("mismatch")
        return shared | reference(local["anchor"][0], local["factor"][0], mismatch), local

    def incomparable(self) -> str:
        """Why a visit cannot be compared with one to the surrogates, and the cure; "" where it can."""
        if self.surrogates is None or not self.precondition:
            return "visits are compared with those to surrogates: give surrogates, and leave precondition=True"
        if self.batch_size is not None and not self.control_variate:
            return "the noise of minibatches cannot be told from a lie: batch_size=None, or control_variate=True"
        return ""

    def contributions(self) -> Contributions:
        """The visits beside the same visits to the surrogates."""
        return VisitContributions(self)
