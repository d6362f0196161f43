"""Federated stochastic gradient Langevin dynamics with conducive gradients (el Mekkaoui et al., Algorithm 1).

    θ_{t+1} = θ_t + h_t/2 (v_s(θ_t) + α g_s(θ_t)) + η_t                                            (5), (7)
    g_s(θ) = ∇ log q(θ) - 1/f_s ∇ log q_s(θ),    q = Π_s q_s                                          (6)

The f-weighted mean of g_s over the clients is zero, so the estimator stays unbiased; where q_s is close to
p(x_s | θ) its expectation hardly depends on s, and a chain may stay at a client for many steps. With Gaussian
surrogates g_s is linear: a client keeps its value at one point and one matrix, whatever the number of clients.
They are sent once, before the first round (D + D² numbers, or 2 D for diagonal surrogates).

Letters: α `alpha`; all others, and the deviations, as in `infer.langevin`. Eq. (7) of the paper leaves out the
prior, which Algorithm 1 has; it is kept here.

Deviation: where no step size is given, a round before the first (`infer.mismatch`) measures how far the surrogates'
scores are from the clients', and visits are so short that no parameter's variance grows by more than `visit_error`
from it (`ops.visits` has the derivation).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.contract import Algorithm, Start, started
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.langevin import LangevinAlgorithm
from pyro_fed.infer.surrogates.mismatch import Mismatch
from pyro_fed.infer.surrogates.surrogates import Given
from pyro_fed.ops.visits import longest_visit


@dataclass(frozen=True, kw_only=True)
class FSGLD(LangevinAlgorithm):
    """FSGLD: DSGLD with conducive gradients.

    Args: as for `LangevinAlgorithm`, and
        alpha: exploration weight of the conducive gradient; every value is unbiased, 1 is the paper's.
        visit_error: by what share the clients' errors may widen a variance, where no step is given; see above.

    References:
        El Mekkaoui, Mesquita, Blomstedt & Kaski, Federated stochastic gradient Langevin dynamics, Algorithm 1.
    """

    alpha: float = 1.0
    visit_error: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "alpha", "visit_error")

    @property
    def conducive_weight(self) -> float:
        """α."""
        return self.alpha

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What fits the surrogates, and measures them where the step depends on it."""
        first = super().warm_start(problem)
        surrogates = first or self.surrogates
        if self.step_size is not None or not isinstance(surrogates, Algorithm | Given):
            return first
        return Mismatch(surrogates=surrogates, alpha=self.alpha, probabilities=self.probabilities)

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """The longest visit whose errors are small enough."""
        worst = float(started(start, self).shared["mismatch"].amax())
        return longest_visit(self.visit_error, worst, num_clients, self.in_sweeps, self.visit_time)
