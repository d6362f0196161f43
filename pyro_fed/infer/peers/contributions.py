"""Contributions of agents without a server: changes of their sites, computed from the beliefs that they send.

On graphs that are not complete, neighbours limit an agent's changes. An agent's neighbours receive its belief before it
is mixed with others, and with it the change of its site, which they forward to each other. Each change is compared with
those of the agents at most two links away, given the sites that these agents have contributed so far and the factor
that all other agents have contributed,

    q / Π_j t_j      j the agents at most two links away, q the mean of their beliefs

as in `algorithm.bounding`. Changes beyond the limits are shortened before they are mixed. An agent that forwards
mixtures which differ from what it has received is not detected: honest neighbours must be linked directly.
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
from pyro_fed.infer.sites.gaussian_sites import SiteContributions, as_state, gaussian, limited_changes
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
    """Changes of sites (C,) within the limits of each agent's neighbourhood, and each change's excess, (C,)."""
    reachable, kind, places = two_links(graph), type(sites), list(enumerate(agents.tolist()))
    precision, eta = torch.zeros_like(deltas.precision), torch.zeros_like(deltas.eta)
    excess = torch.zeros(len(agents), dtype=torch.float64)
    results: dict[tuple[int, ...], tuple[list[int], Gaussian, Tensor]] = {}
    for place, agent in places:
        group = tuple(reachable[agent].nonzero().flatten().tolist())
        if len(group) < MIN_COHORT:
            raise SettingError(
                f"Bounded: agents {list(group)} hear no others, and a faulty one cannot be outvoted; use a graph "
                "with at least three agents within two links of each other"
            )
        if group not in results:
            index, members = torch.tensor(group), [place for place, agent in places if agent in group]
            group_sites = kind(sites.precision[index], sites.eta[index])
            common = kind(q.precision[index], q.eta[index]).product_over(0) ** (1.0 / len(group))
            clients = torch.tensor([group.index(int(agents[place])) for place in members])
            changes = kind(deltas.precision[members], deltas.eta[members])
            centre = centre_of(common, kind(beliefs.precision[members], beliefs.eta[members]))
            base = common / group_sites.product_over(0)
            group_rows = None if rows is None else rows[index]
            limited, limit_excess, _ = limited_changes(limits, base, group_sites, clients, changes, centre, group_rows)
            results[group] = members, limited, limit_excess
        members, limited, limit_excess = results[group]
        member = members.index(place)
        precision[place], eta[place], excess[place] = (
            limited.precision[member],
            limited.eta[member],
            limit_excess[member],
        )
    return type(deltas)(precision, eta), excess


def two_links(graph: Graph) -> Tensor:
    """Whether agents are at most two links apart, (K, K); each is near itself."""
    links = torch.from_numpy(graph.support(0).toarray() != 0)
    near = (links | links.T | torch.eye(len(links), dtype=torch.bool)).double()
    return near @ near > 0


def centre_of(common: Gaussian, beliefs: Gaussian) -> Tensor:
    """The mean of the common belief, or if it is improper the median of the means that were sent, (D,)."""
    return common.mean() if bool(common.is_proper()) else beliefs.mean().nan_to_num().quantile(0.5, 0)


@dataclass(frozen=True)
class PeerContributions(SiteContributions):
    """Contributions of the agents of `P2PVI`."""

    def client_sites(self, shared: State, local: State) -> State | None:
        """The agents' sites, if they hold no share of the prior."""
        is_known = self.algorithm.keeps_site and self.algorithm.starts_at_prior
        return self.account_for_bounds(shared, local) if is_known else None

    def account_for_bounds(self, shared: State, local: State) -> State:
        """The agents' sites, with the prior's share if beliefs begin flat."""
        return as_state(gaussian(local))

    def client_sites_after(self, sites: State, messages: State, feedback: State) -> State | None:
        """The sites after the accepted changes of the beliefs; on complete graphs neighbours can compute them."""
        if "taken_eta" not in feedback:
            return None
        return as_state(gaussian(sites) * gaussian(feedback, "taken_"))

    def answer(self, shared: State) -> Gaussian:
        """The mean of all beliefs."""
        return gaussian(shared).product_over(0) ** (1.0 / len(shared["eta"]))

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The changes of the beliefs, each scaled by its agent's share of the consensus."""
        old_beliefs = gaussian({name: shared[name][sent.clients] for name in ("precision", "eta")})
        return (gaussian(sent.messages) / old_beliefs) ** (1.0 / len(shared["eta"]))

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Beliefs whose changes of the agents' sites are within the limits."""
        q, count = gaussian(shared), len(shared["eta"])
        old_beliefs = gaussian({name: shared[name][sent.clients] for name in ("precision", "eta")})
        sites, new_beliefs = gaussian(ledger), gaussian(sent.messages)
        if sent.graph is not None and not all_hear_all(sent.graph):
            weight = torch.from_numpy(sent.graph.centrality(0))[sent.clients]
            limited, limit_excess = screened_changes(
                limits,
                sent.graph,
                q,
                sites,
                sent.clients,
                (new_beliefs / old_beliefs) ** weight,
                new_beliefs,
                sent.rows,
            )
            belief_changes = limited ** (1.0 / weight)
            return BoundedMessages(
                shared,
                {**sent.messages, **as_state(old_beliefs * belief_changes)},
                as_state(limited, "taken_"),
                limit_excess,
            )
        common, deltas = self.answer(shared), self.site_changes(shared, ledger, sent)
        base = common / sites.product_over(0)
        limited, limit_excess, widened = limited_changes(
            limits, base, sites, sent.clients, deltas, centre_of(common, new_beliefs), sent.rows
        )
        return BoundedMessages(
            shared,
            {**sent.messages, **as_state(old_beliefs * limited ** float(count))},
            as_state(limited, "taken_"),
            limit_excess,
            widened,
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The agents' unchanged beliefs: their sites stay the same, and they still mix what they receive."""
        return {name: shared[name][clients] for name in messages}

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm without acceleration, if its contributions are bounded."""
        return self.algorithm.unaccelerated() if isinstance(combination, Bounded) else self.algorithm

    def bounding_obstacle(self) -> str | None:
        """Why contributions cannot be bounded, such as a start that sums log-likelihoods; otherwise ""."""
        if self.algorithm.start == "consensus":
            return "its start sums log-likelihoods, which cannot be checked: use start='local' or 'prior'"
        if not self.algorithm.keeps_site or self.algorithm.solver.by_gradients:
            return "agents keep no sites to compare: use weighting='exact', batch_size=None and update='newton'"
        return ""
