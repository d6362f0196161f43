"""Pictures of graphs: who hears whom, and how much each agent counts."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import new_axes
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph

#: Area of a node of mean centrality, in points², and the largest number of agents drawn.
NODE_AREA = 350.0
MAX_AGENTS = 1000
#: Agents up to which nodes carry their numbers.
MAX_NUMBERED = 60
#: Agents up to which their places are solved for; more are placed step by step.
MAX_SOLVED = 200


@checked
def plot_graph(
    graph: Graph, *, round: int = 0, names: Mapping[int, str] | None = None, ax: Axes | None = None,
    figsize: tuple[float, float] = (5.0, 5.0), seed: int = 0,
) -> Axes:  # fmt: skip
    """The links of a graph: node area by eigenvector centrality, link width by mixing weight.

    Links of a time-varying graph are those of one window. Arrows show who hears whom where only one of two
    agents hears the other.

    Args:
        graph: what `run(..., graph=)` takes.
        round: the round whose centrality is shown.
        names: labels of agents; their numbers by default, up to 60 agents.
        ax: matplotlib axes; a new figure by default.
        figsize: of a new figure, in inches.
        seed: of the layout.

    Returns:
        The axes.

    Raises:
        SettingError: more agents than can be told apart.

    Example:
        >>> pf.plot_graph(pf.graph.ring(5), names={0: "Basel"}).figure.savefig("ring.png")
    """
    if graph.num_agents > MAX_AGENTS:
        raise SettingError(f"a graph of {graph.num_agents} agents cannot be drawn; the limit is {MAX_AGENTS}")
    ax = new_axes(ax, figsize)
    links = graph.to_networkx()
    links.remove_edges_from(list(nx.selfloop_edges(links)))
    place = _layout(links, seed)
    v = graph.centrality(round)
    area = NODE_AREA * min(1.0, 30 / graph.num_agents) * v / v.mean()
    _draw_links(links, place, area, ax)
    nodes = nx.draw_networkx_nodes(
        links, place, node_size=area, node_color=v, cmap="viridis", ax=ax, vmin=0.0, edgecolors="white"
    )
    if names or graph.num_agents <= MAX_NUMBERED:
        labels = {i: (names or {}).get(i, str(i)) for i in links}
        dark = v < 0.6 * v.max()
        for shade, color in ((dark, "white"), (~dark, "black")):
            some = {i: label for i, label in labels.items() if shade[i]}
            nx.draw_networkx_labels(links, place, some, font_size=8, font_color=color, ax=ax)
    ax.figure.colorbar(nodes, ax=ax, shrink=0.6, label="eigenvector centrality")
    gap, rounds = graph.gap, graph.consensus_rounds()
    ax.set_title(
        f"{graph.num_agents} agents, {graph.links()} directed links\n"
        f"spectral gap {gap:.3g}, {rounds:.0f} rounds for disagreement 1e-3",
        fontsize=10,
    )
    ax.set_axis_off()
    return ax


def _layout(links: nx.DiGraph, seed: int) -> dict[int, np.ndarray]:
    """Rings round, the rest by springs."""
    undirected = links.to_undirected()
    degrees = {degree for _, degree in undirected.degree()}
    place: dict[int, np.ndarray]
    if degrees == {2} or nx.density(undirected) == 1:
        place = nx.circular_layout(undirected)
    else:
        few = len(links) <= MAX_SOLVED
        place = nx.kamada_kawai_layout(undirected) if few else nx.spring_layout(undirected, seed=seed)
    return place


def _draw_links(links: nx.DiGraph, place: dict[int, np.ndarray], area: np.ndarray, ax: Axes) -> None:
    both = [(i, j) for i, j in links.edges if i < j and links.has_edge(j, i)]
    single = [(i, j) for i, j in links.edges if not links.has_edge(j, i)]
    heaviest = max((w for *_, w in links.edges.data("weight")), default=1.0)

    def widths(edges: list[tuple[int, int]]) -> list[float]:
        return [0.4 + 2.0 * links.edges[edge]["weight"] / heaviest for edge in edges]

    nx.draw_networkx_edges(links, place, both, width=widths(both), arrows=False, edge_color="0.6", ax=ax)
    nx.draw_networkx_edges(links, place, single, width=widths(single), node_size=area, edge_color="0.4", ax=ax)
