"""Ready-made topologies. Each returns a `FixedGraph`; those that could be unconnected say so at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scipy import sparse

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import GraphError
from pyro_fed.graph.base import FixedGraph
from pyro_fed.graph.mixing import MIXING, check_connected, check_size, lazy

if TYPE_CHECKING:
    import networkx as nx


@checked
def from_matrix(weights: Any, name: str = "matrix") -> FixedGraph:
    """A graph from an explicit W, as in Section V-A.

    Args:
        weights: (A, A); rows sum to one.
        name: for figures and messages.

    Returns:
        The same W in every round.

    Raises:
        GraphError: not square, negative or not stochastic; names the worst row.

    Example:
        >>> pf.graph.from_matrix([[0.5, 0.5], [0.25, 0.75]])
        FixedGraph(matrix, 2 agents, 2 links)
    """
    return FixedGraph(weights, name)


@checked
def from_networkx(graph: nx.Graph, mixing: str = "metropolis", holding: float = 0.0, name: str = "graph") -> FixedGraph:
    """A networkx graph with weights by a rule.

    Args:
        graph: its nodes, in their order, are the clients in theirs.
        mixing: "metropolis" or "max_degree" (doubly stochastic, undirected graphs), or "uniform"
            (row-stochastic, directed graphs too).
        holding: makes W lazy: h I + (1 - h) W.
        name: for figures and messages.

    Returns:
        The same W in every round.

    Raises:
        GraphError: an unknown rule, a directed graph under a symmetric rule, or a graph that is not
            connected.

    Example:
        >>> pf.graph.from_networkx(networkx.karate_club_graph(), mixing="uniform", name="karate club")
        FixedGraph(karate club, 34 agents, 156 links)
    """
    if mixing not in MIXING:
        raise GraphError(f"mixing must be one of {sorted(MIXING)}, received {mixing!r}")
    matrix = MIXING[mixing](graph)
    check_connected(matrix, f"the {name}")
    return FixedGraph(lazy(matrix, holding) if holding else matrix, name)


@checked
def complete(num_agents: int, mixing: str = "metropolis") -> FixedGraph:
    """Everyone hears everyone, W_ij = 1/N (Section V-B1): consensus in one round.

    Args:
        num_agents: N, at least 1.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: no agents, or an unknown rule.

    Example:
        >>> round(pf.graph.complete(4).gap, 6)
        1.0
    """
    import networkx as nx

    graph = nx.complete_graph(check_size(num_agents, num_agents * (num_agents - 1) / 2))
    return from_networkx(graph, mixing, name="complete graph")


@checked
def ring(num_agents: int, mixing: str = "metropolis") -> FixedGraph:
    """Each agent hears its two neighbours on a ring.

    Args:
        num_agents: N, at least 1.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: no agents, or an unknown rule.

    Example:
        >>> pf.graph.ring(5)
        FixedGraph(ring, 5 agents, 10 links)
    """
    import networkx as nx

    graph = nx.cycle_graph(check_size(num_agents, num_agents))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return from_networkx(graph, mixing, name="ring")


@checked
def star(num_agents: int, confidence: float = 0.5) -> FixedGraph:
    """A centre, agent 0, and agents around it (Section V-B2).

        W_0j = 1/N,    W_i0 = a,  W_ii = 1 - a;    v_0 = a / (a + (N - 1)/N)

    Args:
        num_agents: N, the centre among them; the paper has 9.
        confidence: a, the weight that the agents around give to the centre, in (0, 1].

    Returns:
        The same W in every round.

    Raises:
        GraphError: fewer than two agents, or a confidence outside (0, 1].

    Example:
        >>> round(float(pf.graph.star(9, confidence=0.5).centrality()[0]), 6)
        0.36
    """
    if num_agents < 2 or not 0 < confidence <= 1:
        raise GraphError(
            f"a star needs at least 2 agents and confidence in (0, 1], received {num_agents}, {confidence}"
        )
    check_size(num_agents, num_agents)
    return FixedGraph(star_matrix(num_agents, list(range(1, num_agents)), confidence), "star")


def star_matrix(num_agents: int, around: list[int], confidence: float) -> sparse.csr_array:
    """W (N, N) of a star of agent 0 and the agents `around` it; everyone else keeps to itself."""
    matrix = sparse.eye_array(num_agents, format="lil")
    matrix[0, [0, *around]] = 1.0 / (len(around) + 1)
    for i in around:
        matrix[i, 0], matrix[i, i] = confidence, 1.0 - confidence
    return sparse.csr_array(matrix)


@checked
def grid(num_rows: int, num_columns: int, mixing: str = "metropolis") -> FixedGraph:
    """A rectangular grid, on which each agent hears those beside, above and below it.

    Args:
        num_rows: of the grid, at least 1.
        num_columns: of the grid; agents are numbered row by row.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: no agents, or an unknown rule.

    Example:
        >>> pf.graph.grid(2, 3)
        FixedGraph(grid, 6 agents, 14 links)
    """
    import networkx as nx

    if min(num_rows, num_columns) < 1:
        raise GraphError(f"a grid needs at least 1 row and 1 column, received {num_rows} and {num_columns}")
    check_size(num_rows * num_columns, 2 * num_rows * num_columns)
    return from_networkx(nx.grid_2d_graph(num_rows, num_columns), mixing, name="grid")


@checked
def erdos_renyi(num_agents: int, probability: float, seed: int = 0, mixing: str = "metropolis") -> FixedGraph:
    """Each pair is linked with a probability.

    Args:
        num_agents: N, at least 1.
        probability: of a link, in [0, 1]; below log(N)/N the draw is most likely not connected.
        seed: of the draw.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: the draw is not connected; take a larger probability or another seed.

    Example:
        >>> pf.graph.erdos_renyi(20, 0.3, seed=1)
        FixedGraph(Erdős-Rényi graph (p=0.3, seed=1), 20 agents, 120 links)
    """
    import networkx as nx

    check_size(num_agents, _probability(probability) * num_agents * (num_agents - 1) / 2)
    graph = nx.fast_gnp_random_graph(num_agents, probability, seed=seed)
    return from_networkx(graph, mixing, name=f"Erdős-Rényi graph (p={probability:g}, seed={seed})")


@checked
def small_world(num_agents: int, degree: int, rewiring: float, seed: int = 0, mixing: str = "metropolis") -> FixedGraph:
    """Watts-Strogatz: a ring with some links rewired at random; always connected.

    Args:
        num_agents: N.
        degree: neighbours of each agent on the ring, at least 2 and below N; an odd number counts as one less.
        rewiring: the probability that a link goes to a random agent instead, in [0, 1].
        seed: of the draw.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: a degree or a probability out of its range, or an unknown rule.

    Example:
        >>> pf.graph.small_world(20, 4, 0.1)
        FixedGraph(small world, 20 agents, 80 links)
    """
    import networkx as nx

    if not 2 <= degree < num_agents:
        raise GraphError(f"degree must be at least 2 and below the {num_agents} agents, received {degree}")
    check_size(num_agents, num_agents * degree / 2)
    graph = nx.connected_watts_strogatz_graph(num_agents, degree, _probability(rewiring), tries=1000, seed=seed)
    return from_networkx(graph, mixing, name="small world")


@checked
def random_regular(num_agents: int, degree: int, seed: int = 0, mixing: str = "metropolis") -> FixedGraph:
    """A random graph in which every agent has as many neighbours.

    Args:
        num_agents: N.
        degree: neighbours of each agent, at least 1 and below N; N × degree must be even.
        seed: of the draw.
        mixing: the rule of the weights, "metropolis", "max_degree" or "uniform", see `pyro_fed.graph.mixing`.

    Returns:
        The same W in every round.

    Raises:
        GraphError: a degree that no such graph has, a draw that is not connected, or an unknown rule.

    Example:
        >>> pf.graph.random_regular(10, 3)
        FixedGraph(random regular graph, 10 agents, 30 links)
    """
    import networkx as nx

    if not 1 <= degree < num_agents or num_agents * degree % 2:
        raise GraphError(
            f"degree must be at least 1, below the {num_agents} agents, and agents × degree even; received {degree}"
        )
    check_size(num_agents, num_agents * degree / 2)
    return from_networkx(nx.random_regular_graph(degree, num_agents, seed=seed), mixing, name="random regular graph")


def _probability(value: float) -> float:
    if not 0 <= value <= 1:
        raise GraphError(f"a probability must be in [0, 1], received {value}")
    return value
