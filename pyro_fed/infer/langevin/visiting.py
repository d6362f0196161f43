"""Chains whose visits to clients must be short, because each client's score has an error of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.schedule import Categorical, Schedule, Shuffled
from pyro_fed.conventions.nested_settings import refuse_unused
from pyro_fed.conventions.setting_checks import check_positive, check_probabilities
from pyro_fed.infer.langevin.control_variates import CorrectedLangevin
from pyro_fed.infer.langevin.langevin import STEP_GIVEN
from pyro_fed.infer.surrogates.surrogates import shares


@dataclass(frozen=True, kw_only=True)
class VisitingLangevin(CorrectedLangevin):
    """Chains that travel between clients.

    Args:
        probabilities: f_s, positive with sum one; uniform by default.
        visit_time: largest h T where no step size is given, in preconditioned time.

    The others are those of `CorrectedLangevin`.
    """

    probabilities: tuple[float, ...] | None = None
    visit_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "visit_time")
        if self.step_size is not None:
            refuse_unused(self, STEP_GIVEN, "visit_time")
        if self.probabilities is not None:
            check_probabilities(self, "probabilities")

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64, as set."""
        return shares(self.probabilities, num_clients)

    def derived_step(self, num_clients: int, start: Start | None) -> tuple[float, float]:
        """h of visits of time h T, at most `largest_step`; and of full length, for h T equal to `visit_time`."""
        visits = (self.visit_length(num_clients, start), self.visit_time)
        step, full = (min(self.largest_step, visit / self.local_steps) for visit in visits)
        return step, full

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """h T if no step size is given."""
        return self.visit_time


def one_client(sweeps: bool, probabilities: tuple[float, ...] | None) -> Schedule:
    """One client for each chain: in random sweeps if f_s is uniform, or drawn anew for each visit."""
    return Shuffled() if sweeps and probabilities is None else Categorical(probabilities)
