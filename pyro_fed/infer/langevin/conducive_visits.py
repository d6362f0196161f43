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
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.client_state import ClientState
from pyro_fed.infer.langevin.contributions import VisitContributions
from pyro_fed.infer.langevin.gradients import Score, plus_conducive
from pyro_fed.infer.langevin.held_visits import reference
from pyro_fed.infer.langevin.start import Beginning, give_conducive_gradients
from pyro_fed.infer.langevin.visiting import VisitingLangevin


@dataclass(frozen=True, kw_only=True)
class ConduciveVisits(VisitingLangevin):
    """Visits by conducive gradients, beside the same visits to the surrogates.

    Args:
        trust: the conducive gradient stops growing at √D + trust posterior SDs from the mode; None: nowhere.
        alpha: weight of the conducive gradient.

    The others are those of `VisitingLangevin`.
    """

    trust: float | None = 3.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "trust", allow_none=True)

    def equip(self, clients: ClientState, begin: Beginning, share: Tensor) -> ClientState:
        """The clients' states with α g_s, Eq. (6)."""
        return give_conducive_gradients(super().equip(clients, begin, share), begin, share, self.alpha, self.trust)

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
        if self.surrogates is None or not self.precondition:
            return "visits are compared with those to surrogates: give surrogates, and leave precondition=True"
        if self.batch_size is not None and not self.control_variate:
            return "the noise of minibatches cannot be told from a lie: batch_size=None, or control_variate=True"
        return ""

    def contributions(self) -> Contributions:
        """The visits, which are compared with the same visits to the surrogates."""
        return VisitContributions(self)
