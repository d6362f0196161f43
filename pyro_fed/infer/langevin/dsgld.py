"""Distributed stochastic gradient Langevin dynamics (Ahn et al., 2014; el Mekkaoui et al., Section 2.1).

    θ_{t+1} = θ_t + h_t/2 v_s(θ_t) + η_t                                                              (3)
    v_s(θ) = ∇ log p(θ) + N_s/(f_s m) ∇ log p(x_s^(m) | θ)                                       (4)

FSGLD without conducive gradients. A chain that stays at a client for more than a few steps drifts towards the
posterior of that client's data counted 1/f_s times, so that many local steps sample a mixture of those.
Letters and deviations as in `infer.langevin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.infer.langevin.langevin import LangevinAlgorithm


@dataclass(frozen=True, kw_only=True)
class DSGLD(LangevinAlgorithm):
    """DSGLD: each chain makes `local_steps` steps on one client's rows, then moves on.

    Args: as for `LangevinAlgorithm`. Surrogates serve the preconditioner, the start and the control variate alone.

    References:
        Ahn, Shahbaba & Welling (2014). El Mekkaoui et al., Eq. (3)-(4).
    """
