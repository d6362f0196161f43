"""Graphs drawn anew in each round: links that fail, and gossip between random pairs.

In both, a link that is not used gives its weight back to both ends, so that a reversible W keeps its
centrality in every round, whatever the draw: for doubly stochastic W the mean of all beliefs is never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from pyro_fed.errors import GraphError
from pyro_fed.graph.base import FixedGraph, Graph
from pyro_fed.graph.varying import without_links


@dataclass(frozen=True, eq=False)
class LinkFailures(Graph):
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

    graph: FixedGraph
    probability: float
    random = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability < 1:
            raise GraphError(f"the probability of a link's failure must be in [0, 1), received {self.probability}")
        if not self.graph.keeps_centrality:
            raise GraphError("links can fail only where W is reversible: build the graph with mixing='metropolis'")

    @property
    def num_agents(self) -> int:
        return self.graph.num_agents

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
class GossipPairs(Graph):
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

    graph: FixedGraph
    num_pairs: int = 1
    random = True

    def __post_init__(self) -> None:
        if self.num_pairs < 1:
            raise GraphError(f"num_pairs must be at least 1, received {self.num_pairs}")
        if len(self._links) == 0:
            raise GraphError("gossip needs a graph with at least one link")

    @property
    def num_agents(self) -> int:
        return self.graph.num_agents

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
