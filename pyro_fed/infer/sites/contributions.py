"""Contributions to results that are products of Gaussian sites, q ∝ t_0 Π_k t_k."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import gaussian, sds_moved, where
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class SiteContributions(Contributions, ABC):
    """Clients' Gaussian sites, and the shifts of the mean of q by their changes."""

    def answer(self, shared: State) -> Gaussian:
        """The Gaussian q."""
        return gaussian(shared)

    @abstractmethod
    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes of the clients' sites that come with messages, (C,); arguments as of `client_shift_sds`."""

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Shifts of the mean of q in SDs by the changes of the sites."""
        return sds_moved(self.answer(shared), self.site_changes(shared, ledger, sent))


def held_changes(
    limits: Bounded,
    base: Gaussian,
    sites: Gaussian,
    clients: Tensor,
    deltas: Gaussian,
    centre: Tensor,
    rows: Tensor | None = None,
) -> tuple[Gaussian, Tensor, Tensor]:
    """Changes of sites (C,) after which no client's site is beyond the cohort's, by how much each was, and `widened`.

    Args:
        limits: the combination.
        base: the factor of q without the clients' sites.
        sites: of all clients before the round, (K,); those of clients that have not sent anything yet are one.
        clients: (C,) whose changes these are.
        deltas: as sent, (C,).
        centre: a point near q's mean, (D,).
        rows: of all clients, (K,); None: as many each.
    """
    precision, eta = sites.precision.clone(), sites.eta.clone()
    precision[clients] += deltas.precision
    eta[clients] += deltas.eta
    spoken = (eta != 0).any(-1) | (precision.flatten(1) != 0).any(-1)
    found = limits.sites(
        base, type(sites)(precision[spoken], eta[spoken]), centre, None if rows is None else rows[spoken]
    )
    precision[spoken], eta[spoken] = found.sites.precision, found.sites.eta
    beyond = torch.zeros(len(eta), dtype=torch.float64, device=eta.device)
    beyond[spoken] = found.limit_excess
    widened = torch.ones_like(beyond)
    widened[spoken] = found.widened
    cut = beyond[clients]
    held = type(sites)(precision[clients] - sites.precision[clients], eta[clients] - sites.eta[clients])
    return where(cut > 0, held, deltas), cut, widened[clients]
