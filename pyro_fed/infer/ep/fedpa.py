"""Algorithms whose clients work independently: posterior averaging and the Bayesian committee machine.

Sources: Al-Shedivat et al. (2021), *Federated learning via posterior averaging*; Guo et al., Section 2.1, Remark;
Tresp (2000), *A Bayesian committee machine*.

    FedPA   q_k ≈ p_k,          q ∝ p_0 Π_k q_k           cavity q_-k ∝ 1
    BCM     q_k ≈ p_k p_0,      q ∝ Π_k q_k / p_0^(K-1)   cavity q_-k = p_0, one round

Deviation of FedPA: the natural parameters of the whole Gaussian are averaged. The paper averages the gradients
Σ_k⁻¹(θ - μ_k) of the same log density and keeps only the mean. Its covariance by dynamic programming is the shrinkage
estimator of `tilted.chain`, which is computed directly here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.infer.ep.settings import ONE_PASS, Controlled, Damped, Optimising, WarmStarted
from pyro_fed.infer.ep.tilted import MCMC, Laplace, TiltedInference
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, gaussian
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedPA(WarmStarted, Optimising, Controlled):
    """Federated posterior averaging: the product of Gaussians fitted to the clients' likelihoods.

    Args:
        client: how a client approximates its own likelihood: `pf.infer.tilted.MCMC` (with shrinkage, as published),
            `pf.infer.tilted.Laplace`, or another inference of `pf.infer.tilted`, or its name for its defaults.
        start: where the clients' chains and searches start: "laplace" (federated, with all clients), "prior", or
            "auto": the prior if it is proper and there are more than 100 parameters.
        damping: δ, in (0, 1]; 1 is plain averaging. With an optimiser, its learning rate. None takes 1 for "newton",
            and else one over the clients of the round.

    References:
        Al-Shedivat et al. (2021).

    Example:
        >>> idata = pf.run(pf.infer.FedPA(client=pf.infer.tilted.MCMC(steps=500)), fed)
    """

    without: ClassVar[Mapping[str, str]] = {
        "tolerance": "the clients' sites do not depend on q, so that there is no criterion of convergence",
    }

    client: TiltedInference | str = MCMC()
    damping: float | None = 1.0

    def cavity(self, received: State, site: Gaussian) -> Gaussian:
        """The flat cavity q_-k = 1, (C,): a client uses only its likelihood."""
        return flat_like(site)

    def default_rounds(self, num_clients: int) -> int:
        """The number of rounds; the clients' sites depend on q only by where their chains start."""
        return 5


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class BCM(Damped):
    """The Bayesian committee machine: one round, each client with the whole prior.

    Args:
        client: how a client approximates its own posterior: an inference of `pf.infer.tilted`, or its name for its
            defaults.
        damping: δ, in (0, 1]; 1 is the committee machine.

    References:
        Tresp (2000).

    Example:
        >>> idata = pf.run(pf.infer.BCM(), fed)
    """

    without: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("start", "tolerance", "step_control"), ONE_PASS),
        "optimisers": "its one step is the product of the clients' sites",
    }

    client: TiltedInference | str = Laplace()
    damping: float | None = 1.0

    def default_rounds(self, num_clients: int) -> int:
        """One round."""
        return 1

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q and the prior."""
        return Algorithm.download(
            self, {**as_state(gaussian(shared)), **as_state(gaussian(shared, "prior_"), "prior_")}, clients
        )

    def cavity(self, received: State, site: Gaussian) -> Gaussian:
        """The cavity q_-k = p_0, (C,), a copy of the prior for every client."""
        return gaussian(received, "prior_")

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """True after the only round."""
        return True
