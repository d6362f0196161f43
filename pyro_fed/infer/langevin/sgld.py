"""Stochastic gradient Langevin dynamics on the pooled data (Welling & Teh, 2011).

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1)
    v(θ) = ∇ log p(θ) + N/m ∇ log p(x^(m) | θ)                                                        (2)

Equation numbers are those of el Mekkaoui et al.; letters and deviations as in `infer.langevin`, with S = 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.capabilities import Pooled
from pyro_fed.infer.langevin.langevin import LangevinAlgorithm


@dataclass(frozen=True, kw_only=True)
class SGLD(LangevinAlgorithm, Pooled):
    """Centralised SGLD: `local_steps` steps a round on minibatches of all rows.

    Args: as for `LangevinAlgorithm`; `probabilities` has no meaning here.

    References:
        Welling & Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics.
    """

    def step_for(self, visit: float) -> float:
        """`largest_step`: no client's error limits it."""
        return self.largest_step
