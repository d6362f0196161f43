"""Federated expectation propagation (FedEP), and its stochastic form (FedSEP), whose clients keep no state.

This module combines groups of settings. The equations are in `expectation_propagation`, the step rules in `steps`, and
the clients' inferences in `tilted`.

    paper                       default here                     setting for the paper's method
    clients by M, I, L or V     an expected Newton step at q     client="mcmc", "identity", "fisher", "ngvi"
    steps by optimisers         the largest fractions            optimisers=pf.infer.Optimisers(...), damping=
    sum of the changes          sum                              changes="mean", as in the authors' code
    start by FedAvg             federated Laplace approximation  start=pf.infer.Averaging()

The default inference, `tilted.Newton`, computes the site of an expected Newton step at q, with the same Sobol points
for all clients. Its fixed point is the Gaussian of smallest KL(q ‖ posterior):

    Λ_k ← E_q[-∇² log p_k],   η_k ← E_q[∇ log p_k] + Λ_k m

Deviations: by default clients do not fit their tilted distributions. Each takes a natural-gradient step at q, which
does not depend on its cavity; client="mcmc" is EP proper. A prior that is not Gaussian has a site at the server. Steps
are shortened to keep q proper; precisions are never modified. Single Newton steps of all clients are accelerated:
without acceleration they may oscillate if the precision of one parameter depends on the mean of another, and diagonal
curvatures overshoot.

The authors' code averages the changes of the round's clients, `changes="mean"`, as do the published recipes: the sum
with a learning rate of 0.5 and momentum 0.9 overshoots. It also clips Δ_k at a norm chosen by hand for each task and
inference; there is no clipping here.

FedSEP (Guo et al., Section 2.2.4; Li et al. 2015) uses one average site t̄ = (q / t_0)^(1/K) for every client, with the
prior's site t_0, which is p_0 for a Gaussian prior:

    q = t_0 t̄^K,    q_-k = q / t̄,    q ← q Π_k (Δ_k)^δ

If all K clients take part in every round, the fixed point is that of FedEP. With C < K clients per round, q is a moving
average over about K / C rounds and remains noisy; a smaller δ reduces the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_fed.algorithm.capabilities import no_sites
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.contributions import AverageSiteContributions
from pyro_fed.infer.ep.guided import GuidedFedEP, GuidedFedSEP
from pyro_fed.infer.ep.settings import Controlled, Converging, Guided, Optimising, WarmStarted
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedEP(Converging, WarmStarted, Optimising, Controlled, Guided):
    """Federated expectation propagation with Gaussian sites, accurate by default.

    References:
        Guo et al. (2023), Algorithms 1, 3, 4 and 5. Vehtari et al. (2020), JMLR.

    Example:
        >>> idata = pf.run(pf.FedEP(), fed)
        >>> idata = pf.run(pf.FedEP(client=pf.infer.tilted.MCMC(steps=500), covariance="diag"), fed)
        >>> idata = pf.run(pf.FedEP(guide=AutoDiagonalNormal), fed)
    """


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedSEP(Converging, WarmStarted, Optimising, Controlled, Guided):
    """Stochastic expectation propagation: FedEP whose clients keep no state.

    Args:
        optimisers: of the changes, in place of fractions: a `pf.infer.Optimisers` with a server's optimiser alone.

    References:
        Guo et al. (2023), Section 2.2.4. Li et al. (2015), Stochastic expectation propagation.

    Example:
        >>> idata = pf.run(pf.infer.FedSEP(start="prior"), fed, schedule=pf.schedule.UniformRandom(10))
    """

    additive: ClassVar[bool] = True
    corrected: ClassVar[bool] = False  # there is no site to correct
    guided: ClassVar[type[GuidedFedEP]] = GuidedFedSEP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_optimiser is not None:
            raise SettingError("FedSEP: optimisers: its clients keep no state for an optimiser of theirs; use FedEP")

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """Refuse to regroup, because the clients keep no sites.

        Raises:
            SettingError: always.
        """
        raise no_sites(self)

    def client_state(self, sites: Gaussian) -> State:
        """An empty state, because the clients keep nothing."""
        return {}

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q and the average site, which clients receive."""
        q = gaussian(shared)
        average = q.quotient(gaussian(shared, "prior_")).power(1.0 / int(shared["num_clients"]))
        return Algorithm.download(self, {**as_state(q), **as_state(average, "average_")}, clients)

    def old_site(self, received: State, local: State) -> Gaussian:
        """The site that changes refer to, (C,): the average of all."""
        return gaussian(received, "average_")

    def settle(self, feedback: State, local: State) -> State:
        """An empty state, because the clients keep nothing."""
        return {}

    def contributions(self) -> Contributions:
        """The average site, which represents each client's."""
        return AverageSiteContributions(self)
