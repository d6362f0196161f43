"""Stochastic expectation propagation: FedEP whose clients keep nothing.

Source: Guo et al., Section 2.2.4; Li et al. (2015).

    q ∝ p_0 t̄^K,    q_-k ∝ q / t̄,    q ← q Π_k (Δ_k)^δ

K copies of one average site t̄ = (q / p_0)^(1/K) represent all clients, so that the server's q is sufficient. With all
clients at work every round has FedEP's fixed point. With few, q is a moving average over the last K / C rounds and
keeps noise, which a smaller δ reduces.
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
from pyro_fed.infer.ep.settings import Controlled, Converging, Optimising, WarmStarted
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedSEP(Converging, WarmStarted, Optimising, Controlled):
    """Stochastic expectation propagation: FedEP whose clients keep no state.

    Args:
        covariance: of q: "full", "diag", or "auto": full up to 100 parameters (1,000 of linear predictors).
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians as far as
            the covariance is full by default.
        num_points: Sobol points for expectations under q; even.
        tolerance: the run has converged when no mean moves by more than this many SDs in a round, and no SD by
            more than this share.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance.
        client: how the clients approximate their tilted distributions: a `pf.infer.tilted` inference with its settings,
            or its name for their defaults: "newton", "laplace", "fisher" (L), "mcmc" (M), "identity" (I), "ngvi" (V),
            "svi", "ivon". On models of more than 1000 parameters "ivon" is taken if none is set.
        start: "laplace" (federated, with all clients), "mode" (the same, to the end of Newton's method), "prior",
            "fedavg" (diagonal sites at the point that averaging finds, which is taken on large models), a
            `pf.infer.Averaging` (the same as published), or "auto": the prior if it is proper and there are more than
            100 parameters.
        damping: δ, in (0, 1]; with an optimiser, its learning rate. None takes 1 for "newton", and else one over the
            clients of the round: q is then the geometric mean of their tilted distributions, which no noise of theirs
            compounds.
        step_control: how Newton steps are accelerated and held back.
        optimisers: of the changes, in place of fractions: a `pf.infer.Optimisers` with a server's optimiser alone.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Guo et al. (2023), Section 2.2.4. Li et al. (2015), Stochastic expectation propagation.

    Example:
        >>> idata = pf.run(pf.infer.FedSEP(start="prior"), fed, schedule=pf.schedule.UniformRandom(10))
    """

    additive: ClassVar[bool] = True
    corrected: ClassVar[bool] = False  # there is no site to correct

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

    def settle(self, told: State, local: State) -> State:
        """An empty state, because the clients keep nothing."""
        return {}

    def contributions(self) -> Contributions:
        """The average site, which represents each client's."""
        return AverageSiteContributions(self)
