"""Chains whose visits to clients must be short, because each client's score has an error of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.schedule import Categorical, Schedule, Shuffled
from pyro_fed.conventions.setting_checks import check_probabilities
from pyro_fed.infer.langevin.control_variates import CorrectedLangevin
from pyro_fed.infer.langevin.step import Fixed, ForVisits, Step
from pyro_fed.infer.surrogates.surrogates import shares


@dataclass(frozen=True, kw_only=True)
class VisitingLangevin(CorrectedLangevin):
    """Chains that travel between clients.

    Args:
        probabilities: f_s, positive with sum one; uniform by default.

    The others are those of `CorrectedLangevin`.
    """

    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, ForVisits)
    #: Largest h T if the step leaves it open.
    usual_visit_time: ClassVar[float] = 1.0

    step: Step | str = ForVisits()
    probabilities: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probabilities is not None:
            check_probabilities(self, "probabilities")

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64, as set."""
        return shares(self.probabilities, num_clients)

    @property
    def visit_time(self) -> float:
        """The largest h T of a derived step."""
        longest = cast(ForVisits, self.step).visit_time
        return self.usual_visit_time if longest is None else longest

    def derived_step(self, num_clients: int, start: Start | None) -> tuple[float, float]:
        """h of visits of time h T, at most `step.largest`; and of full length, for h T equal to `visit_time`."""
        largest = cast(ForVisits, self.step).largest
        visits = (self.visit_length(num_clients, start), self.visit_time)
        step, full = (min(largest, visit / self.local_steps) for visit in visits)
        return step, full

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """h T if the step is derived."""
        return self.visit_time


def one_client(sweeps: bool, probabilities: tuple[float, ...] | None) -> Schedule:
    """One client for each chain: in random sweeps if f_s is uniform, or drawn anew for each visit."""
    return Shuffled() if sweeps and probabilities is None else Categorical(probabilities)
