"""Stochastic expectation propagation: FedEP whose clients keep nothing.

Source: Guo et al., Section 2.2.4; Li et al. (2015).

    q ∝ p_0 t̄^K,    q_-k ∝ q / t̄,    q ← q Π_k (Δ_k)^δ

K copies of one average site t̄ = (q / p_0)^(1/K) stand for all clients, so that the server's q says everything.
With all clients at work every round has FedEP's fixed point. With few, q is a moving average over the last K / C
rounds and keeps a noise that a smaller δ lowers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_fed.algorithm.capabilities import no_sites
from pyro_fed.algorithm.contract import Algorithm, State
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class FedSEP(FedEP):
    """FedEP with stateless clients.

    Args: as for `EPSettings`; no `client_optimiser`, since there is no local state.

    References:
        Guo et al. (2023), Section 2.2.4.
    """

    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_optimiser != "none":
            raise SettingError(
                f"FedSEP: its clients keep no state for client_optimiser={self.client_optimiser!r}; use FedEP"
            )

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """Refused: the clients keep no sites.

        Raises:
            SettingError: always.
        """
        raise no_sites(self)

    def client_state(self, sites: Gaussian) -> State:
        """Nothing."""
        return {}

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q and the average site."""
        q = gaussian(shared)
        average = q.quotient(gaussian(shared, "prior_")).power(1.0 / int(shared["num_clients"]))
        return Algorithm.download(self, {**as_state(q), **as_state(average, "average_")}, clients)

    def old_site(self, shared: State, local: State) -> Gaussian:
        """The average site."""
        return gaussian(shared, "average_")

    def settle(self, told: State, local: State) -> State:
        """Nothing to keep."""
        return {}
