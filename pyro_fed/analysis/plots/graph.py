"""Who takes part: the graph of agents with weights and centrality, and the rows of each client by label."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, MAX_MARKS, new_axes, short_names, tidy, width_with_names
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph

#: Area of a node of mean centrality, in points².
NODE_AREA = 350.0
#: Distance of names from the middles of nodes, in units of the layout, whose places are in [-1, 1].
NAME_DISTANCE = 0.09
#: Largest number of agents that can be told apart in a figure.
MAX_AGENTS = 1000
#: The layout of at most this many agents minimises an energy; larger graphs use a faster spring simulation.
MAX_SOLVED_AGENTS = 200


@checked
def plot_graph(
    graph: Graph, *, round: int = 0, names: Mapping[int, str] | None = None, ax: Axes | None = None,
    figsize: tuple[float, float] | None = None, seed: int = 0,
) -> Axes:  # fmt: skip
    """The links of a graph: node area by eigenvector centrality, link width by mixing weight.

    The links of a time-varying graph are the links of one window. If only one of two agents hears the other, an arrow
    shows which.

    Args:
        graph: a graph, as `run(..., graph=)` takes it.
        round: the round whose centrality is shown.
        names: labels of agents; their numbers by default, up to 40 agents.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.
        seed: seed of the layout.

    Returns:
        The axes.

    Raises:
        SettingError: more agents than can be told apart.

    Example:
        >>> pf.plots.plot_graph(pf.graph.ring(5), names={0: "Basel"}).figure.savefig("ring.png")
    """
    if graph.num_agents > MAX_AGENTS:
        raise SettingError(
            f"plot_graph draws at most {MAX_AGENTS} agents, which can still be distinguished, received a graph of "
            f"{graph.num_agents}"
        )
    labels = dict(zip(names or {}, short_names((names or {}).values()), strict=True))
    ax = new_axes(ax, figsize or (5.0 + 0.13 * max(map(len, labels.values()), default=0), 5.0))
    links = graph.to_networkx()
    links.remove_edges_from(list(nx.selfloop_edges(links)))
    place = _layout(links, seed)
    v = graph.centrality(round)
    area = NODE_AREA * min(1.0, 30 / graph.num_agents) * v / v.mean()
    _draw_links(links, place, area, ax)
    nodes = nx.draw_networkx_nodes(
        links, place, node_size=area, node_color=v, cmap="viridis", ax=ax, vmin=0.0, edgecolors="white"
    )
    if graph.num_agents <= MAX_MARKS:
        dark = v < 0.6 * v.max()
        for shade, color in ((dark, "white"), (~dark, "black")):
            some = {i: str(i) for i in links if shade[i] and i not in labels}
            nx.draw_networkx_labels(links, place, some, font_size=8, font_color=color, ax=ax)
    ax.margins(0.1)
    ax.figure.colorbar(nodes, ax=ax, shrink=0.6, label="eigenvector centrality")
    gap, rounds = graph.gap, graph.consensus_rounds()
    ax.set_title(
        f"{graph.num_agents} agents, {graph.links()} directed links\n"
        f"spectral gap {gap:.3g}, {rounds:.0f} rounds for disagreement 1e-3",
        fontsize=10,
    )
    ax.set_axis_off()
    if labels:
        middle = np.mean([at[0] for at in place.values()])
        for side, away in (("left", 1), ("right", -1)):  # outside of the nodes, so that they and the links are seen
            beside = {i: at + np.array([away * NAME_DISTANCE, 0.0]) for i, at in place.items()}
            some = {i: name for i, name in labels.items() if (place[i][0] >= middle) == (side == "left")}
            nx.draw_networkx_labels(links, beside, some, font_size=9, horizontalalignment=side, clip_on=False, ax=ax)
    return ax


def _layout(links: nx.DiGraph, seed: int) -> dict[int, np.ndarray]:
    """Places of the agents: rings and complete graphs on a circle, other graphs by springs."""
    undirected = links.to_undirected()
    degrees = {degree for _, degree in undirected.degree()}
    place: dict[int, np.ndarray]
    if degrees == {2} or nx.density(undirected) == 1:
        place = nx.circular_layout(undirected)
    else:
        few = len(links) <= MAX_SOLVED_AGENTS
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


@checked
def plot_partition(
    federation: Federation, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """A bar of each client's number of rows, split by label if the observations are a few classes.

    Args:
        federation: the clients.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes.

    Example:
        >>> pf.plots.plot_partition(fed).figure.savefig("clients.png")
    """
    table = federation.summary()
    labels = [name for name in table.columns if str(name).startswith("label ")]
    labels = labels if len(labels) <= len(COLORS) else []  # too many values, as of counts: colours would repeat
    names = short_names(table.index)
    named = len(names) <= MAX_MARKS
    ax = new_axes(ax, figsize or (width_with_names(names, 4.6), 1.2 + 0.28 * min(len(names), MAX_MARKS)))
    place, floor = np.arange(len(table)), np.zeros(len(table))
    for i, name in enumerate(labels or ["rows"]):
        size = table[name].to_numpy(dtype=float)
        ax.barh(place, size, left=floor, height=0.85, color=COLORS[i % len(COLORS)], label=str(name))
        floor += size
    if named:
        ax.set_yticks(place, names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="rows", ylabel="client")
    ax.set_title(
        f"{int(table['rows'].sum()):,} rows over {len(table)} clients: {type(federation.partition).__name__}",
        fontsize=10,
    )
    if labels:
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    tidy(ax, grid="x")
    return ax
