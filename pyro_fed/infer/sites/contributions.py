"""Contributions to answers that are products of Gaussian sites, q ∝ t_0 Π_k t_k."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from pyro_fed.algorithm.contributions import Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import gaussian, sds_moved
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class SiteContributions(Contributions, ABC):
    """Clients' Gaussian sites, and how far their changes move the mean of q."""

    def answer(self, shared: State) -> Gaussian:
        """The Gaussian q."""
        return gaussian(shared)

    @abstractmethod
    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes of the clients' sites that come with messages, (C,); arguments as of `client_shift_sds`."""

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """By the changes of the sites."""
        return sds_moved(self.answer(shared), self.site_changes(shared, ledger, sent))
