"""Contributions of the clients of the federated Laplace approximation: expansions of their log-likelihoods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.laplace.line import held_values
from pyro_fed.infer.laplace.states import Server
from pyro_fed.infer.sites.contributions import SiteContributions
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class LaplaceContributions(SiteContributions):
    """Contributions of the clients of `FedLaplace`."""

    def client_sites(self, shared: State, local: State) -> State | None:
        """The expansions of the clients' log-likelihoods at the last point."""
        return as_state(gaussian(local)) if "eta" in local else None

    def client_sites_after(self, sites: State, messages: State, told: State) -> State | None:
        """The sites that were sent: each replaces the one before."""
        return as_state(gaussian(messages))

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The differences from the expansions at the point before, or from flat sites."""
        sites, own = gaussian(sent.messages), self.client_sites(shared, ledger) if ledger else None
        old = sites.power(0.0) if own is None else gaussian({n: v[sent.clients] for n, v in own.items()})
        return sites.quotient(old)

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Sites within the limits, and values on the line no further apart than these sites and the cohort explain."""
        server = entries_as(Server, shared)
        point = server.line.end
        found = limits.sites(server.prior, gaussian(sent.messages), point, sent.own_rows)
        values, start = held_values(
            found.sites, point, self._along(server), sent.messages["values"], limits.pull, sent.own_rows
        )
        usable = sent.messages["usable"]
        usable = torch.full_like(usable, bool(usable.double().mean() > 0.5))  # not as one client says
        # Values go on from where those of the round before have come to: the median level is another at another point,
        # and the posterior's mass there would be compared with that of other levels.
        known = server.value - server.prior_value[self._shortest]
        level = torch.where(known.isfinite(), known - start, 0.0) / len(values)
        return BoundedMessages(
            shared,
            {**sent.messages, **as_state(found.sites), "values": values + level, "usable": usable},
            {},
            found.limit_excess,
            found.widened,
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """Messages of clients without rows: a flat line and no site."""
        flat = {
            name: torch.zeros_like(value[:1]).expand(len(clients), *value.shape[1:]) for name, value in messages.items()
        }
        return {**flat, "usable": torch.ones_like(flat["usable"])}

    @property
    def _shortest(self) -> int:
        """The index of the fraction that is nearest to the point itself."""
        fractions: tuple[float, ...] = self.algorithm.fractions
        return fractions.index(min(fractions))

    def _along(self, server: Server) -> Tensor:
        """The line's points relative to the one aimed at, the nearest to the present point last, (L + 1, D)."""
        fractions = server.point.new_tensor([*self.algorithm.fractions, self.algorithm.fractions[self._shortest]])
        return (fractions - server.aim).unsqueeze(-1) * server.direction
