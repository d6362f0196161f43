"""Contributions of agents without a server: changes of their sites, which follow from the beliefs that are sent.

On graphs where not all hear all, changes are limited by what the neighbours' neighbours send. An agent's neighbours
receive its belief before it is mixed with others, and with it the change of its site. They forward it to each other, so
that each change is judged beside those of the agents at most two links away, among the sites that these have
contributed so far, and what all others have contributed,

    q / Π_j t_j      j the agents at most two links away, q the mean of their beliefs

as `algorithm.bounding` does. Changes beyond its limits are cut back before they are mixed. This does not detect an
agent that passes on other mixtures than it has received: links between honest neighbours must be their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT, Bounded, Combination
from pyro_fed.algorithm.combination_check import all_hear_all
from pyro_fed.algorithm.contributions import BoundedMessages, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian, held_changes
from pyro_fed.ops.gaussian import Gaussian


def screened_changes(
    limits: Bounded,
    graph: Graph,
    q: Gaussian,
    sites: Gaussian,
    agents: Tensor,
    deltas: Gaussian,
    beliefs: Gaussian,
    rows: Tensor | None,
) -> tuple[Gaussian, Tensor]:
    """Changes of sites (C,) within the limits of each agent's surroundings, and by how much each was beyond, (C,)."""
    around, kind, places = two_links(graph), type(sites), list(enumerate(agents.tolist()))
    precision, eta = torch.zeros_like(deltas.precision), torch.zeros_like(deltas.eta)
    beyond = torch.zeros(len(agents), dtype=torch.float64)
    judged: dict[tuple[int, ...], tuple[list[int], Gaussian, Tensor]] = {}
    for place, agent in places:
        near = tuple(around[agent].nonzero().flatten().tolist())
        if len(near) < MIN_COHORT:
            raise SettingError(
                f"Bounded: agents {list(near)} hear nobody else, and two cannot outvote one of them; give a graph with "
                "at least three agents within two links"
            )
        if near not in judged:
            index, there = torch.tensor(near), [place for place, agent in places if agent in near]
            own = kind(sites.precision[index], sites.eta[index])
            common = kind(q.precision[index], q.eta[index]).product_over(0) ** (1.0 / len(near))
            clients = torch.tensor([near.index(int(agents[place])) for place in there])
            changes = kind(deltas.precision[there], deltas.eta[there])
            centre = centre_of(common, kind(beliefs.precision[there], beliefs.eta[there]))
            base = common / own.product_over(0)
            near_rows = None if rows is None else rows[index]
            held, cut, _ = held_changes(limits, base, own, clients, changes, centre, near_rows)
            judged[near] = there, held, cut
        there, held, cut = judged[near]
        at = there.index(place)
        precision[place], eta[place], beyond[place] = held.precision[at], held.eta[at], cut[at]
    return type(deltas)(precision, eta), beyond


def two_links(graph: Graph) -> Tensor:
    """Whether agents are at most two links apart, (K, K); each is near itself."""
    links = torch.from_numpy(graph.support(0).toarray() != 0)
    near = (links | links.T | torch.eye(len(links), dtype=torch.bool)).double()
    return near @ near > 0


def centre_of(common: Gaussian, beliefs: Gaussian) -> Tensor:
    """The mean of a belief, or the median of the means that were sent if it has none yet, (D,)."""
    return common.mean() if bool(common.is_proper()) else beliefs.mean().nan_to_num().quantile(0.5, 0)


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
        """Beliefs whose changes of the agents' sites are within the limits."""
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
        """The algorithm without acceleration, if its contributions are bounded."""
        return self.algorithm.unaccelerated() if isinstance(combination, Bounded) else self.algorithm

    def bounding_obstacle(self) -> str | None:
        """The reason why contributions cannot be bounded, such as a start that sums log-likelihoods; or ""."""
        if self.algorithm.start == "consensus":
            return "its start adds up log-likelihoods that nobody can check: start='local', or 'prior'"
        if not self.algorithm.keeps_site or self.algorithm.solver.by_gradients:
            return "the agents' changes are those of no sites: weighting='exact', batch_size=None, update='newton'"
        return ""
