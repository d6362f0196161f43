"""Limits on agents' changes by what their neighbours' neighbours send, on graphs where not all hear all.

An agent's neighbours receive its belief before it is mixed with others, and with it the change of its site. They
forward it to each other, so that each change is judged beside those of the agents at most two links away, among the
sites that these have contributed so far, and what all others have contributed,

    q / Π_j t_j      j the agents at most two links away, q the mean of their beliefs

as `algorithm.bounding` does. Changes beyond its limits are cut back before they are mixed. This does not detect an
agent that passes on other mixtures than it has received: links between honest neighbours must be their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT, Bounded
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph
from pyro_fed.infer.sites.gaussian_sites import held_changes
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
    """Changes of sites within the limits of each agent's surroundings, (C,), and by how much each was beyond, (C,).

    Args:
        limits: the combination.
        graph: who hears whom, the same in every round.
        q: the beliefs before the round, (K,).
        sites: what the agents have put in so far, (K,).
        agents: (C,) that sent something.
        deltas: changes of their sites as sent, (C,).
        beliefs: as sent, (C,).
        rows: of all agents, (K,); None: as many each.

    Raises:
        SettingError: an agent has fewer than two others within two links.
    """
    around = two_links(graph)
    precision, eta = torch.zeros_like(deltas.precision), torch.zeros_like(deltas.eta)
    beyond = torch.zeros(len(agents), dtype=torch.float64)
    found: dict[tuple[int, ...], tuple[list[int], Gaussian, Tensor]] = {}
    for place, agent in enumerate(agents.tolist()):
        near = tuple(around[agent].nonzero().flatten().tolist())
        if near not in found:
            found[near] = _held_neighbour_changes(limits, near, q, sites, agents, deltas, beliefs, rows)
        there, held, cut = found[near]
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


def _held_neighbour_changes(
    limits: Bounded,
    near: tuple[int, ...],
    q: Gaussian,
    sites: Gaussian,
    agents: Tensor,
    deltas: Gaussian,
    beliefs: Gaussian,
    rows: Tensor | None,
) -> tuple[list[int], Gaussian, Tensor]:
    """The agents in a neighbourhood that sent something, their held changes, and by how much each was cut."""
    if len(near) < MIN_COHORT:
        raise SettingError(
            f"Bounded: agents {list(near)} hear nobody else, and two cannot outvote one of them; give a graph with at "
            "least three agents within two links"
        )
    index = torch.tensor(near)
    kind = type(sites)
    own = kind(sites.precision[index], sites.eta[index])
    common = kind(q.precision[index], q.eta[index]).product_over(0) ** (1.0 / len(near))
    there = [place for place, agent in enumerate(agents.tolist()) if agent in near]
    clients = torch.tensor([near.index(int(agents[place])) for place in there])
    changes = kind(deltas.precision[there], deltas.eta[there])
    centre = centre_of(common, kind(beliefs.precision[there], beliefs.eta[there]))
    base = common / own.product_over(0)
    near_rows = None if rows is None else rows[index]
    held, cut, _ = held_changes(limits, base, own, clients, changes, centre, near_rows)
    return there, held, cut
