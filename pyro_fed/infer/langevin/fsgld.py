"""Federated stochastic gradient Langevin dynamics with conducive gradients (el Mekkaoui et al., Algorithm 1).

    θ_{t+1} = θ_t + h_t/2 (v_s(θ_t) + α g_s(θ_t)) + η_t                                            (5), (7)
    g_s(θ) = ∇ log q(θ) - 1/f_s ∇ log q_s(θ),    q = Π_s q_s                                          (6)

The f-weighted mean of g_s over the clients is zero, so the estimator stays unbiased. If q_s is close to p(x_s | θ), its
expectation hardly depends on s, and a chain may stay at a client for many steps. With Gaussian surrogates g_s is
linear: a client keeps its value at one point and one matrix, for any number of clients. They are sent once, before the
first round (D + D² numbers, or 2 D for diagonal surrogates).

Algorithm 1 in this package:

    the chains go to their clients              `Langevin.download`
    Update: T steps of Eq. (5)                  `Langevin.local_step`; a step is `Integrator.step`
        v_s(θ), Eq. (4)                         `MinibatchScore`, or `ControlVariateScore`
        g_s(θ), Eq. (6)                         `ConduciveGradient.at`, by `conducive_gradients`
        v_s(θ) + α g_s(θ), Eq. (7)              `ConduciveScore`; `ClientState.score` joins them
    Reassign_chain: samples are stored          `Langevin.combine`, `ChainStore.with_visits`

Letters: α `conducive.alpha`; all others as in `langevin.langevin`, and the deviations as there and in `dsgld`. Eq. (7)
of the paper omits the prior, which Algorithm 1 has; it is included here.

Deviation: if no step size is set, a round before the first (`surrogates.measuring`) measures the differences between
the scores of surrogates and clients. Visits are short enough that these increase no parameter's variance by more than
`step.visit_error` (`ops.langevin` has the derivation). The round also measures the largest curvature λ of a chain's
score at a client. Steps are at most `STABLE_STEP_SHARE` of 4/λ, since a posterior may be steeper elsewhere. Such visits
have five steps of 800 rows instead of forty of 100, with the same minibatch noise and an eighth of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from pyro_fed.algorithm.contract import Algorithm, Start, required_start
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.conducive_visits import Conducive, ConduciveVisits
from pyro_fed.infer.langevin.dsgld import one_client
from pyro_fed.infer.langevin.langevin import DerivedStep
from pyro_fed.infer.langevin.step import Fixed, Measured, Step
from pyro_fed.infer.langevin.visits import STABLE_STEP_SHARE
from pyro_fed.infer.surrogates.measuring import Mismatch
from pyro_fed.infer.surrogates.surrogates import Given
from pyro_fed.ops.langevin import STABLE, longest_visit


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FSGLD(ConduciveVisits):
    """Federated SGLD: chains visit clients, and the conducive gradient makes expected scores at all clients similar.

    Args:
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is at most 1.01 (1.025 of ten chains). None runs all rounds; if `run` gets no number, the
            chains make 1,200 visits together.
        step: the step's size and rule: a `pf.infer.step.Measured`, or a `pf.infer.step.Fixed`.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None is refused: the conducive
            gradient is made of them.
        sweeps: every client once in each sweep, in random order, if f_s is uniform; else clients are drawn anew for
            each visit.

    References:
        El Mekkaoui, Mesquita, Blomstedt & Kaski (2021), Federated stochastic gradient Langevin dynamics, Algorithm 1,
        Eq. (5)-(7).

    Example:
        >>> idata = pf.run(pf.FSGLD(num_chains=4), fed)
        >>> idata = pf.run(pf.FSGLD(surrogates=pf.infer.LocalSGLD(num_samples=5000), batch_size=50), fed)
    """

    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, Measured)

    num_chains: int = 10
    local_steps: int = 5
    burn_in: int = 50
    thin: int = 5
    batch_size: int | None = 800
    sweeps: bool = True
    step: Step | str = Measured()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conducive is None:
            raise SettingError("FSGLD: conducive must be a pf.infer.Conducive, received None; use DSGLD without it")

    def default_schedule(self) -> Schedule:
        """One client for each chain: in random sweeps, or drawn with probabilities f_s."""
        return one_client(self.sweeps, self.probabilities)

    def default_rounds(self, num_clients: int) -> int:
        """At most 10,000 visits of each chain if `target_ess` ends the run; else 1,200 of all chains together."""
        return -(-1_200 // self.num_chains) if self.target_ess is None else super().default_rounds(num_clients)

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The fit of the surrogates, with a measurement of their errors if the step depends on it."""
        first = super().warm_start(problem)
        surrogates = first or self.surrogates
        if not isinstance(self.step, Measured) or not isinstance(surrogates, Algorithm | Given):
            return first
        alpha = cast(Conducive, self.conducive).alpha
        return Mismatch(surrogates=surrogates, alpha=alpha, probabilities=self.probabilities)

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """The longest visit whose errors are small enough."""
        worst = float(required_start(start, self).shared["mismatch"].amax())
        in_sweeps = self.sweeps and self.probabilities is None
        error = cast(Measured, self.step).visit_error
        return longest_visit(error, worst, num_clients, in_sweeps, self.visit_time)

    def derived_step(self, num_clients: int, start: Start | None) -> DerivedStep:
        """h of visits that are short enough, and whose steps are stable."""
        step, full_step = super().derived_step(num_clients, start)
        steepest = float(required_start(start, self).shared["curvature"])
        return DerivedStep(min(step, STABLE_STEP_SHARE * STABLE / steepest), full_step)
