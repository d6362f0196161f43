"""Federated ADMM by Bayesian duality, and its form for networks by IVON.

Source: Moellenhoff, Swaroop, Doshi-Velez & Khan (2025), *Federated ADMM from Bayesian duality*; derived here from

    min Σ_k E_{q_k}[-log p_k] + KL(q ‖ p_0)     such that  μ_k = μ          μ the expectation parameters, λ the natural

The duals v_k are the natural parameters of the sites t_k. Divergences replace the squared distances of ADMM: ρ KL(q_k ‖
q) at a client and ρ KL(q ‖ q_k) at the server:

    q_k ← arg min E_q'[-log p_k] + <v_k, μ'> + ρ KL(q' ‖ q)          = arg min ρ KL(q' ‖ p_k^(1/ρ) q / t_k^(1/ρ))
    v_k ← v_k + ρ (λ_k - λ)
    λ   ← (λ_0 + Σ_k v_k + ρ Σ_k λ_k) / (1 + ρ K)

A client's step is that of partitioned variational inference with a tempered likelihood; the server also averages. A
client sends Δ_k = ρ (λ_k - λ). With e = λ - λ_0 - Σ_k v_k before the round, the server's step is

    λ ← λ + (2 Σ_k Δ_k + Δ_0 - e) / (1 + ρ K)

At a fixed point Δ_k = 0 and e = 0, as in PVI. With isotropic Gaussians of fixed variance the algorithm is ADMM.

Letters: ρ `rho`, e `ahead_`, Δ_0 `prior_delta_`. Deviations: a prior that is not Gaussian has a site λ_0 that is
updated too; an absent client counts as if λ_k = λ; the step of λ is backtracked so that q stays a distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Variant, explains_unknown
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.contributions import ADMMContributions
from pyro_fed.infer.ep.pvi import TEN_STEPS
from pyro_fed.infer.ep.settings import Converging, WarmStarted
from pyro_fed.infer.ep.steps import Server
from pyro_fed.infer.ep.tilted import Received, Tilted, TiltedInference
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, flat_site, gaussian, is_finite, kept_where
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class BayesADMM(Converging, WarmStarted):
    """Bayesian ADMM: sites are the duals, and the server also averages the clients' Gaussians.

    Args:
        client: the clients' inference: "newton" takes ten steps; "ivon" is the default on large models.
        rho: ρ, the strength of the pull of a client towards q; the fixed point does not depend on it.

    References:
        Moellenhoff et al. (2025), Federated ADMM from Bayesian duality.

    Example:
        >>> idata = pf.run(pf.infer.BayesADMM(), fed)
    """

    without: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("damping", "step_control", "optimisers"), "the length of the steps follows from rho"),
    }
    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {"client": {"newton": TEN_STEPS}}

    client: TiltedInference | str = TEN_STEPS
    rho: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "rho")
        if self.solver.newton_steps == 1:
            raise SettingError(
                f"{type(self).__name__}: client='newton' must take at least 2 steps, received 1; use FedEP for one step"
            )

    def new_sites(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Approximate t̂_k of p_k^(1/ρ) q_-k, to the power ρ."""
        answer = super().new_sites(problem, received, data._replace(power=data.power / self.rho), noise)
        return answer._replace(site=answer.site.power(self.rho))

    def first_states(self, problem: Problem, q: Gaussian, prior: Gaussian, sites: Gaussian) -> tuple[State, State]:
        shared, local = super().first_states(problem, q, prior, sites)
        return {**shared, **as_state(flat_site(problem, self.structure), "ahead_")}, local

    def cavity(self, received: State, site: Gaussian) -> Gaussian:
        """q / t_k^(1/ρ), (C,)."""
        return gaussian(received).quotient(site.power(1 / self.rho))

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Compute the server's average λ, and its difference e from the product of the sites."""
        server, ahead = entries_as(Server, shared), gaussian(shared, "ahead_")
        sent = self.changes_of(messages).product_over(0)
        prior_is_finite = is_finite(server.prior_change)
        prior_change = kept_where(prior_is_finite, server.prior_change)
        share = 1 / (1 + self.rho * int(server.num_clients))
        full_step = sent.power(2.0).product(prior_change).quotient(ahead).power(share)
        fraction = backtrack(server.q, full_step)
        step = full_step.power(fraction)
        new_server = replace(
            server,
            q=server.q.product(step),
            prior=server.prior.product(prior_change),
            prior_change=flat_like(server.q),  # it was this round's
            fractions=messages["usable"].double(),
            cut=(~prior_is_finite | (fraction < 1)).double(),
            memory=server.memory | as_state(ahead.product(step).quotient(sent).quotient(prior_change), "ahead_"),
        )
        return as_entries(new_server)

    def damping_of_round(self, after: State) -> float:
        """The share 1 / (1 + ρ K) of the full step that a round takes."""
        return 1.0 / (1 + self.rho * int(after["num_clients"]))

    def contributions(self) -> Contributions:
        """The clients' sites, without the noise of privacy."""
        return ADMMContributions(self)
