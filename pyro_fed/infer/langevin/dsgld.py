"""Distributed stochastic gradient Langevin dynamics (Ahn et al., 2014; el Mekkaoui et al., Section 2.1).

    θ_{t+1} = θ_t + h_t/2 v_s(θ_t) + η_t                                                              (3)
    v_s(θ) = ∇ log p(θ) + N_s/(f_s m) ∇ log p(x_s^(m) | θ)                                       (4)

This is FSGLD without conducive gradients. A chain that stays at a client for more than a few steps drifts towards the
posterior of that client's data counted 1/f_s times. Visits must therefore be short (`VisitingLangevin`); with many
local steps, chains sample a mixture of these posteriors. Letters and deviations as in `langevin.langevin`. Further
deviations:

* By default h = min(`step.largest`, t / T), where t is the longest visit time, at most `visit_time`, in preconditioned
  coordinates. During a visit the score has the error of one client's surrogate, so that a visit must be short compared
  with the chain's relaxation time, which is 2 there; `FSGLD` measures these errors and chooses t accordingly. If the
  step is shorter than for t = `visit_time`, burn-in is longer by the same factor.
* `sweeps`: if f_s is uniform, clients are visited in random sweeps (`schedule.Shuffled`) instead of drawn independently
  for each visit, so that the errors of one client and the others cancel (see `ops.langevin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.schedule import Categorical, Schedule, Shuffled
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_probabilities
from pyro_fed.infer.langevin.langevin import DerivedStep
from pyro_fed.infer.langevin.sgld import CorrectedLangevin
from pyro_fed.infer.langevin.step import Fixed, ForVisits, Step
from pyro_fed.infer.surrogates.surrogates import visit_shares


@dataclass(frozen=True, kw_only=True)
class VisitingLangevin(CorrectedLangevin):
    """Chains that travel between clients.

    Args:
        probabilities: f_s, the probability of each client, positive with sum one; None is uniform.
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
        return visit_shares(self.probabilities, num_clients)

    @property
    def visit_time(self) -> float:
        """The largest h T of a derived step."""
        longest = cast(ForVisits, self.step).visit_time
        return self.usual_visit_time if longest is None else longest

    def derived_step(self, num_clients: int, start: Start | None) -> DerivedStep:
        """h of visits of time h T, at most `step.largest`; of full size, for h T equal to `visit_time`."""
        largest = cast(ForVisits, self.step).largest
        visits = (self.visit_length(num_clients, start), self.visit_time)
        return DerivedStep(*(min(largest, visit / self.local_steps) for visit in visits))

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """h T if the step is derived."""
        return self.visit_time


def one_client(sweeps: bool, probabilities: tuple[float, ...] | None) -> Schedule:
    """One client for each chain: in random sweeps if f_s is uniform, or drawn anew for each visit."""
    return Shuffled() if sweeps and probabilities is None else Categorical(probabilities)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class DSGLD(VisitingLangevin):
    """Distributed SGLD: each chain takes `local_steps` steps on one client's rows, then moves to the next client.

    Surrogates are used only for the preconditioner, the start and the control variate.

    Args:
        step: the step's size and rule: a `pf.infer.step.ForVisits`, or a `pf.infer.step.Fixed`.
        sweeps: every client once in each sweep, in random order, if f_s is uniform; else clients are drawn anew for
            each visit.

    References:
        Ahn, Shahbaba & Welling (2014), Distributed stochastic gradient MCMC. El Mekkaoui et al., Eq. (3)-(4).

    Example:
        >>> idata = pf.run(pf.infer.DSGLD(local_steps=2), fed)
    """

    sweeps: bool = True

    def default_schedule(self) -> Schedule:
        """One client for each chain: in random sweeps, or drawn with probabilities f_s."""
        return one_client(self.sweeps, self.probabilities)
