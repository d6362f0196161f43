"""Graphs whose mixing matrix W changes from round to round, by a plan or at random.

    Periodic, rotating_stars, Partitioned    a sequence, the paper's stars, a cut      Wang et al., Section V-B3
    LinkFailures                             links that fail
    GossipPairs                              averages of random pairs                  Boyd et al. (2006), [29]
    Clocks                                   the same, by each agent's own clock       the same, Section I

A link that is not used gives its weight back to both ends, so that a reversible W keeps its centrality in every round,
whatever the draw: for doubly stochastic W the mean of all beliefs is never lost.

Agent i's clock ticks as a Poisson process of rate r_i; at a tick it chooses a neighbour j, uniformly, and both take
the mean of their beliefs: W^(ij) = I - (e_i - e_j)(e_i - e_j)'/2. A round, a unit of time, is a product of such
matrices in the order of the ticks, and its expectation is exact:

    E W = exp(Σ_i r_i (W̄_i - I)),    W̄_i = the mean of W^(ij) over i's neighbours j

Entries of a product are means over several ticks: bytes that a run counts by them are those of as many links, where
each tick takes two messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import expm

from pyro_fed.conventions.calls import checked
from pyro_fed.errors import GraphError
from pyro_fed.graph import analysis
from pyro_fed.graph.base import FixedGraph, Graph
from pyro_fed.graph.builders import star_matrix
from pyro_fed.graph.mixing import check_size


@dataclass(frozen=True, eq=False)
class Periodic(Graph):
    """Graphs in turn, for ever.

    Args:
        graphs: one a round, all of the same agents.
        groups: the agents that work in each of these rounds; all where None.

    Raises:
        GraphError: no graphs, or different numbers of agents.

    Example:
        >>> pf.graph.Periodic([pf.graph.ring(6), pf.graph.star(6)]).window
        2
    """

    graphs: Sequence[FixedGraph]
    groups: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        sizes = sorted({graph.num_agents for graph in self.graphs})
        if len(sizes) != 1:
            raise GraphError(f"a periodic graph needs graphs of one number of agents, received {sizes}")
        if self.groups is not None and len(self.groups) != len(self.graphs):
            raise GraphError(f"{len(self.graphs)} graphs need as many groups, received {len(self.groups)}")

    @property
    def num_agents(self) -> int:
        return self.graphs[0].num_agents

    @property
    def window(self) -> int:
        """The number of graphs, after which they repeat."""
        return len(self.graphs)

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """W of the graph whose turn it is."""
        return self.graphs[round % self.window].matrix

    def expected(self, round: int) -> sparse.csr_array:
        """W of the graph whose turn it is."""
        return self.graphs[round % self.window].matrix

    def active(self, round: int) -> list[int] | None:
        """The agents of this round's group."""
        return None if self.groups is None else list(self.groups[round % self.window])

    @cached_property
    def _centrality(self) -> list[np.ndarray]:
        """v(0), ..., v(window - 1): v(0) is stationary for the product; backwards v(t) = v(t+1) W(t)."""
        v = [analysis.stationary_distribution(sparse.csr_array(self._product()))]
        for t in reversed(range(1, self.window)):
            v.insert(0, v[0] @ self.expected(t))
        return [v[-1], *v[:-1]]

    def centrality(self, round: int = 0) -> np.ndarray:
        """v(t) of this round in the window."""
        return self._centrality[round % self.window]


@checked
def rotating_stars(num_around: int, group_size: int, confidence: float = 0.5) -> Periodic:
    """The time-varying network of Section V-B3: agent 0 in the centre of one group after the other.

    In round k the agents N_0 (k-1) + 1, ..., N_0 k and the centre work and talk, with W_0j = 1/(N_0 + 1),
    W_i0 = a and W_ii = 1 - a; everyone else is asleep.

    Args:
        num_around: N, the agents around the centre (N + 1 in all).
        group_size: N_0, a divisor of N.
        confidence: a, the weight that they give to the centre; the paper has 0.5.

    Returns:
        As many stars in turn as there are groups.

    Raises:
        GraphError: sizes that do not divide, or a confidence outside (0, 1].

    Example:
        >>> pf.graph.rotating_stars(num_around=8, group_size=2).window
        4
    """
    if group_size < 1 or num_around % group_size or num_around < 1:
        raise GraphError(f"group_size must divide the {num_around} agents around the centre, received {group_size}")
    if not 0 < confidence <= 1:
        raise GraphError(f"confidence must be in (0, 1], received {confidence}")
    check_size(num_around + 1, (num_around // group_size) * (num_around + 1))  # a matrix of all agents for each group
    groups = [list(range(first, first + group_size)) for first in range(1, num_around + 1, group_size)]
    graphs = [FixedGraph(star_matrix(num_around + 1, group, confidence), "star") for group in groups]
    return Periodic(graphs, [[0, *group] for group in groups])


@dataclass(frozen=True, eq=False)
class LinksOfGraph(Graph):
    """Base of graphs whose agents and links are those of another."""

    graph: FixedGraph

    @property
    def num_agents(self) -> int:
        return self.graph.num_agents


@dataclass(frozen=True, eq=False)
class Partitioned(LinksOfGraph):
    """A graph that is cut in parts for some rounds: links between the parts fail, both ways.

    While it is cut, centrality sums to one within each part, so that each part ends at the posterior of its
    own data.
    Data used before the cut are not lost by it. Data used during it counted once within their part: when
    the cut is mended, they count by v_i / v_i(part), one half for two equal halves, because no agent can know
    that the graph would be whole again.

    Args:
        graph: what is cut; its W must be reversible (undirected graphs are).
        parts: every agent in one part.
        start: first round of the cut.
        stop: first round after it; None if it is never mended.

    Raises:
        GraphError: parts that are not a partition of the agents, or a W that is not reversible.

    Example:
        >>> halves = [[0, 1, 2], [3, 4, 5]]
        >>> cut = pf.graph.Partitioned(pf.graph.ring(6), halves, start=5, stop=10)
        >>> cut.weights(5, np.random.default_rng(0))[2, 3], cut.weights(10, np.random.default_rng(0))[2, 3] > 0
        (np.float64(0.0), np.True_)
    """

    parts: Sequence[Sequence[int]]
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        listed = sorted(agent for part in self.parts for agent in part)
        if listed != list(range(self.graph.num_agents)):
            raise GraphError(f"parts must list each of the {self.graph.num_agents} agents once, received {self.parts}")
        if not self.graph.keeps_centrality:
            raise GraphError("only a graph with reversible W can be cut: use mixing='metropolis'")

    @cached_property
    def _cut(self) -> FixedGraph:
        part_of = np.empty(self.num_agents, dtype=np.int64)
        for k, part in enumerate(self.parts):
            part_of[list(part)] = k
        links = self.graph.matrix.tocoo()
        return FixedGraph(without_links(self.graph.matrix, part_of[links.row] != part_of[links.col]), "cut graph")

    def _now(self, round: int) -> FixedGraph:
        return self._cut if self.start <= round and (self.stop is None or round < self.stop) else self.graph

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """W of the cut graph while the cut lasts, else of the whole one."""
        return self._now(round).matrix

    def expected(self, round: int) -> sparse.csr_array:
        """W of the cut graph while the cut lasts, else of the whole one."""
        return self._now(round).matrix

    def centrality(self, round: int = 0) -> np.ndarray:
        """The centrality of each part while the graph is cut, summing to one within it."""
        return self._now(round).centrality()

    @property
    def gap(self) -> float:
        """Spectral gap of the uncut graph."""
        return self.graph.gap

    def check(self) -> None:
        """Require the uncut graph to be connected; the cut is meant."""
        self.graph.check()


def without_links(matrix: sparse.csr_array, failed: np.ndarray) -> sparse.csr_array:
    """W (A, A) with the weights of `failed` entries (nnz,), in `tocoo()` order, added to the receivers' own weights."""
    links = matrix.tocoo()
    failed = failed & (links.row != links.col)
    lost = np.bincount(links.row[failed], weights=links.data[failed], minlength=matrix.shape[0])
    kept = sparse.coo_array((links.data[~failed], (links.row[~failed], links.col[~failed])), shape=matrix.shape)
    return sparse.csr_array(kept.tocsr() + sparse.diags_array(lost.astype(np.float64)))


@dataclass(frozen=True, eq=False)
class LinkFailures(LinksOfGraph):
    """Each link fails in each round with a probability, both ways at once.

    Args:
        graph: the graph whose links fail.
        probability: p, in [0, 1).

    Raises:
        GraphError: p outside [0, 1), or a W that is not reversible (its centrality would change with every
            draw).

    Example:
        >>> pf.graph.LinkFailures(pf.graph.ring(5), 0.3)
        LinkFailures(graph=FixedGraph(ring, 5 agents, 10 links), probability=0.3)
    """

    probability: float
    random = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise GraphError(f"the probability of a link's failure must be in [0, 1), received {self.probability}")
        if not self.graph.keeps_centrality:
            raise GraphError("links can fail only where W is reversible: build the graph with mixing='metropolis'")

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, int]:
        """The number of the undirected link that each entry of W belongs to, and the number of such links."""
        links = self.graph.matrix.tocoo()
        low, high = np.minimum(links.row, links.col), np.maximum(links.row, links.col)
        keys, number = np.unique(low.astype(np.int64) * self.num_agents + high, return_inverse=True)
        return number, len(keys)

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """W without this round's failed links."""
        number, count = self._pairs
        return without_links(self.graph.matrix, (rng.random(count) < self.probability)[number])

    def expected(self, round: int) -> sparse.csr_array:
        """p I + (1 - p) W: a failed link's weight stays at home."""
        p = self.probability
        return sparse.csr_array(p * sparse.eye_array(self.num_agents) + (1 - p) * self.graph.matrix)

    def centrality(self, round: int = 0) -> np.ndarray:
        """The centrality of the graph without failures."""
        return self.graph.centrality()


@dataclass(frozen=True, eq=False)
class GossipPairs(LinksOfGraph):
    """In each round random pairs of neighbours, no agent in two, take the mean of their beliefs.

    Source: Boyd et al., *Randomized gossip algorithms*, reference [29] of Wang et al. Every W is symmetric:
    v_i = 1/A.

    Args:
        graph: who may talk to whom; its links are read as undirected, its weights ignored.
        num_pairs: pairs a round, at most; fewer where the drawn links touch the same agents.

    Raises:
        GraphError: no pairs, or a graph without links.

    Example:
        >>> pf.graph.GossipPairs(pf.graph.complete(10), num_pairs=3)
        GossipPairs(graph=FixedGraph(complete graph, 10 agents, 90 links), num_pairs=3)
    """

    num_pairs: int = 1
    random = True

    def __post_init__(self) -> None:
        if self.num_pairs < 1:
            raise GraphError(f"num_pairs must be at least 1, received {self.num_pairs}")
        if len(self._links) == 0:
            raise GraphError("gossip needs a graph with at least one link")

    @cached_property
    def _links(self) -> np.ndarray:
        """(L, 2) undirected links."""
        links = self.graph.matrix.tocoo()
        pairs = np.stack([np.minimum(links.row, links.col), np.maximum(links.row, links.col)], axis=1)
        return np.unique(pairs[links.row != links.col], axis=0)

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """One half each within the pairs; everyone else keeps to itself."""
        chosen = self._links[rng.permutation(len(self._links))]
        free = np.ones(self.num_agents, dtype=bool)
        pairs = []
        for i, j in chosen:
            if free[i] and free[j]:
                pairs.append((i, j))
                free[[i, j]] = False
            if len(pairs) == self.num_pairs:
                break
        return _pair_averaging(np.array(pairs), np.full(len(pairs), 0.5), self.num_agents)

    def expected(self, round: int) -> sparse.csr_array:
        """For one pair a round exactly; for several, as if every link were equally likely."""
        rate = min(1.0, self.num_pairs / len(self._links))
        return _pair_averaging(self._links, np.full(len(self._links), 0.5 * rate), self.num_agents)

    def centrality(self, round: int = 0) -> np.ndarray:
        """Every agent's weight in the consensus, 1/A."""
        return np.full(self.num_agents, 1.0 / self.num_agents)


def _pair_averaging(pairs: np.ndarray, weight: np.ndarray, num_agents: int) -> sparse.csr_array:
    """I - Σ weight (e_i - e_j)(e_i - e_j)' over pairs (i, j)."""
    i, j = pairs.T
    links = sparse.coo_array(
        (np.tile(weight, 2), (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(num_agents, num_agents)
    ).tocsr()
    own = 1.0 - np.asarray(links.sum(axis=1)).ravel()
    return sparse.csr_array(links + sparse.diags_array(own))


@dataclass(frozen=True, eq=False)
class Clocks(LinksOfGraph):
    """Agents that wake by Poisson clocks of their own and average with a random neighbour; a round is a unit of time.

    Args:
        graph: who may talk to whom; its links are read as undirected, its weights ignored.
        rates: expected ticks a round, of every agent alike, or one number an agent; not negative.

    Raises:
        GraphError: rates that are negative or not one an agent, or an agent without neighbours.

    Example:
        >>> pf.graph.Clocks(pf.graph.ring(5), rates=2.0)
        Clocks(graph=FixedGraph(ring, 5 agents, 10 links), rates=2.0)
    """

    rates: float | Sequence[float] = 1.0
    random = True

    def __post_init__(self) -> None:
        rates = np.asarray(self.rates, dtype=np.float64)
        if rates.shape not in ((), (self.num_agents,)) or not (np.isfinite(rates).all() and (rates >= 0).all()):
            raise GraphError(
                f"rates must be a number, or one for each of the {self.num_agents} agents, not negative, received "
                f"{self.rates}"
            )
        lonely = [i for i, neighbours in enumerate(self._neighbours) if not len(neighbours)]
        if lonely:
            raise GraphError(f"agents {lonely} have no neighbours to average with")

    @cached_property
    def _rate(self) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.rates, dtype=np.float64), (self.num_agents,))

    @cached_property
    def _neighbours(self) -> list[np.ndarray]:
        """The agents that may average with each agent."""
        links = sparse.csr_array(((self.graph.matrix + self.graph.matrix.T) != 0).astype(np.float64))
        links.setdiag(0)
        links.eliminate_zeros()
        return np.split(links.indices, links.indptr[1:-1])

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """The product of this round's pairs, in the order of their ticks."""
        total = float(self._rate.sum())
        product = np.eye(self.num_agents)
        if total > 0:
            for i in rng.choice(self.num_agents, size=rng.poisson(total), p=self._rate / total):
                j = rng.choice(self._neighbours[i])
                product[[i, j]] = product[[i, j]].mean(0)
        return sparse.csr_array(product)

    @cached_property
    def _expected(self) -> sparse.csr_array:
        generator = np.zeros((self.num_agents, self.num_agents))
        for i, (rate, neighbours) in enumerate(zip(self._rate, self._neighbours, strict=True)):
            for j in neighbours:
                share = rate / (2 * len(neighbours))
                generator[[i, j], [i, j]] -= share
                generator[[i, j], [j, i]] += share
        return sparse.csr_array(expm(generator))

    def expected(self, round: int) -> sparse.csr_array:
        """exp(Σ r_i (W̄_i - I))."""
        return self._expected

    def centrality(self, round: int = 0) -> np.ndarray:
        """Every agent's weight in the consensus, 1/A."""
        return np.full(self.num_agents, 1.0 / self.num_agents)
