"""Methods whose clients do not look at each other: posterior averaging, and the Bayesian committee machine.

Sources: Al-Shedivat et al. (2021), *Federated learning via posterior averaging*; Guo et al., Section 2.1, Remark;
Tresp (2000), *A Bayesian committee machine*.

    FedPA   q_k ≈ p_k,          q ∝ p_0 Π_k q_k           cavity q_-k ∝ 1
    BCM     q_k ≈ p_k p_0,      q ∝ Π_k q_k / p_0^(K-1)   cavity q_-k = p_0, one round

Deviation of FedPA: the whole Gaussian is averaged, in natural parameters; the paper averages Σ_k⁻¹(θ - μ_k), the same
sum's gradient, and keeps the mean alone. Its covariance by dynamic programming is the shrinkage estimator of
`clients.chain`, which is formed directly here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Start, State
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class FedPA(FedEP):
    """Federated posterior averaging.

    Args:
        client: "mcmc" (with shrinkage, as published) or "laplace".

    Other settings: as for `EPSettings`.

    References:
        Al-Shedivat et al. (2021).
    """

    client: Literal["newton", "identity", "mcmc", "laplace", "ngvi", "svi"] = "mcmc"
    damping: float | None = 1.0

    def cavity(self, shared: State, site: Gaussian) -> Gaussian:
        """One."""
        return type(site)(torch.zeros_like(site.precision), torch.zeros_like(site.eta))

    def default_rounds(self, num_clients: int) -> int:
        """The clients' answers do not depend on q, save for where their chains start."""
        return 5

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """No criterion: there is nothing to converge."""
        return None


@dataclass(frozen=True, kw_only=True)
class BCM(FedEP):
    """The Bayesian committee machine: one round, each client with the whole prior.

    Args:
        client: how a client's own posterior is approximated.

    Other settings: as for `EPSettings`.

    References:
        Tresp (2000).
    """

    client: Literal["newton", "identity", "mcmc", "laplace", "ngvi", "svi"] = "laplace"
    damping: float | None = 1.0
    start: Literal["auto", "laplace", "prior"] = "prior"

    def default_rounds(self, num_clients: int) -> int:
        """One."""
        return 1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """At the prior.

        Raises:
            ModelError: an improper prior, of which no client can have a copy.
        """
        if problem.layout.improper:
            raise ModelError(
                f"BCM gives every client the whole prior and divides by its copies, but the priors of sites "
                f"{sorted(problem.layout.improper)} are improper: give them proper priors, or use FedEP or FedPA"
            )
        return super().init(problem, num_clients, generator, start)

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """None: one round is all."""
        return None

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q and the prior."""
        return Algorithm.download(
            self, {**as_state(gaussian(shared)), **as_state(gaussian(shared, "prior_"), "prior_")}, clients
        )

    def cavity(self, shared: State, site: Gaussian) -> Gaussian:
        """The prior."""
        return gaussian(shared, "prior_")

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """After its one round."""
        return True
