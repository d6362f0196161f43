"""Visits by conducive gradients: what `FSGLD` and `FALD` share.

    v_s(θ) + α g_s(θ)                                        Eq. (7) of el Mekkaoui et al.

The server replays such a visit to the Gaussian of all sites, with the client's own random numbers. The comparison shows
how far the visit moved the result, and is the basis of the limits of `Bounded`. The equations are in `held_visits`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.client_state import ClientState
from pyro_fed.infer.langevin.conducive import Conducive
from pyro_fed.infer.langevin.contributions import VisitContributions
from pyro_fed.infer.langevin.gradients import Score, plus_conducive
from pyro_fed.infer.langevin.held_visits import reference
from pyro_fed.infer.langevin.start import Beginning, give_conducive_gradients
from pyro_fed.infer.langevin.visiting import VisitingLangevin


@dataclass(frozen=True, kw_only=True)
class ConduciveVisits(VisitingLangevin):
    """Visits by conducive gradients, beside the same visits to the surrogates.

    Args:
        conducive: the conducive gradient; None leaves it out.

    The others are those of `VisitingLangevin`.
    """

    conducive: Conducive | None = Conducive()

    def __post_init__(self) -> None:
        if self.conducive is not None and not isinstance(self.conducive, Conducive):
            name = type(self).__name__
            raise SettingError(f"{name}: conducive must be a pf.infer.Conducive, received {self.conducive!r}")
        super().__post_init__()

    @property
    def needs_surrogates(self) -> bool:
        """Whether surrogates are used, for conducive gradients or a control variate at their mode."""
        return self.conducive is not None or super().needs_surrogates

    def equip(self, clients: ClientState, begin: Beginning, share: Tensor) -> ClientState:
        """The clients' states with α g_s, Eq. (6)."""
        return give_conducive_gradients(super().equip(clients, begin, share), begin, share, self.conducive)

    def build_gradient(self, client: ClientState, anchor: Tensor | None = None) -> Score:
        """v_s + α g_s, Eq. (7), whose f-weighted mean is the posterior's score."""
        return plus_conducive(super().build_gradient(client, anchor), client.conducive)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start as `Langevin`, and keep the surrogates' Gaussian and the cohort's errors, to compare visits with."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.contributions().bounding_obstacle():
            return shared, local
        mismatch = None if start is None else start.shared.get("mismatch")
        return shared | reference(local["anchor"][0], local["factor"][0], mismatch), local

    def incomparable(self) -> str:
        """The reason why a visit cannot be compared with one to the surrogates, and the cure; "" if it can."""
        if self.surrogates is None or not self.rule.preconditions:
            return "visits are compared with those to surrogates: give surrogates, and a step that preconditions"
        if self.batch_size is not None and not self.control_variate:
            return "the noise of minibatches cannot be told from a lie: batch_size=None, or control_variate=True"
        return ""

    def contributions(self) -> Contributions:
        """The visits, which are compared with the same visits to the surrogates."""
        return VisitContributions(self)
