"""Contributions of agents without a server: changes of their sites, which follow from the beliefs that are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.combination_check import all_hear_all
from pyro_fed.algorithm.contributions import BoundedMessages, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.peers.screening import centre_of, screened_changes
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian, held_changes
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True)
class PeerContributions(SiteContributions):
    """Contributions of the agents of `P2PVI`."""

    def client_sites(self, shared: State, local: State) -> State | None:
        """The agents' sites, if they hold no share of the prior."""
        known = self.algorithm.keeps_site and self.algorithm.starts_at_prior
        return self.account_for_bounds(shared, local) if known else None

    def account_for_bounds(self, shared: State, local: State) -> State:
        """The agents' sites, with the prior's share if beliefs begin flat."""
        return as_state(gaussian(local))

    def client_sites_after(self, sites: State, messages: State, told: State) -> State | None:
        """The sites after the accepted changes of the beliefs, which neighbours can compute if all agents hear all."""
        if "taken_eta" not in told:
            return None
        return as_state(gaussian(sites) * gaussian(told, "taken_"))

    def answer(self, shared: State) -> Gaussian:
        """The mean of all beliefs."""
        return gaussian(shared).product_over(0) ** (1.0 / len(shared["eta"]))

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes of the beliefs, each scaled by its agent's part of the graph."""
        mine = gaussian({name: shared[name][sent.clients] for name in ("precision", "eta")})
        return (gaussian(sent.messages) / mine) ** (1.0 / len(shared["eta"]))

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Beliefs whose changes of the agents' sites are within the limits.

        If all hear all, every agent knows from the beliefs that were sent what each has contributed so far: it acts as
        its own server, and all reach the same verdict. Otherwise `peers.screening` decides who judges whom.
        """
        q, count = gaussian(shared), len(shared["eta"])
        mine = gaussian({name: shared[name][sent.clients] for name in ("precision", "eta")})
        sites, told = gaussian(ledger), gaussian(sent.messages)
        if sent.graph is not None and not all_hear_all(sent.graph):
            weight = torch.from_numpy(sent.graph.centrality(0))[sent.clients]
            held, cut = screened_changes(
                limits, sent.graph, q, sites, sent.clients, (told / mine) ** weight, told, sent.rows
            )
            taken = held ** (1.0 / weight)
            return BoundedMessages(shared, {**sent.messages, **as_state(mine * taken)}, as_state(held, "taken_"), cut)
        common, deltas = self.answer(shared), self.site_changes(shared, ledger, sent)
        base = common / sites.product_over(0)
        held, cut, widened = held_changes(limits, base, sites, sent.clients, deltas, centre_of(common, told), sent.rows)
        return BoundedMessages(
            shared, {**sent.messages, **as_state(mine * held ** float(count))}, as_state(held, "taken_"), cut, widened
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The agents' beliefs unchanged: their sites do not change, and they pass on what they receive."""
        return {name: shared[name][clients] for name in messages}

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm without acceleration, if its contributions are bounded.

        Anderson's rule takes the steps of the last rounds for those of one map, and extrapolates them. Noise that is
        new in every round violates this: it would be extrapolated up to five times as far as the limits allow.
        """
        return self.algorithm.unaccelerated() if isinstance(combination, Bounded) else self.algorithm

    def bounding_obstacle(self) -> str | None:
        """The reason why contributions cannot be bounded, such as a start that sums log-likelihoods; or ""."""
        if self.algorithm.start == "consensus":
            return "its start adds up log-likelihoods that nobody can check: start='local', or 'prior'"
        if not self.algorithm.keeps_site or self.algorithm.solver.by_gradients:
            return "the agents' changes are those of no sites: weighting='exact', batch_size=None, update='newton'"
        return ""
