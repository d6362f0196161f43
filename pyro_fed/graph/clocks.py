"""Asynchronous gossip: every agent wakes by a clock of its own, and averages with one neighbour.

Source: Boyd, Ghosh, Prabhakar & Shah (2006), *Randomized gossip algorithms*, reference [29] of Wang et al., Section I.

Agent i's clock ticks as a Poisson process of rate r_i; at a tick it chooses a neighbour j, uniformly, and both take
the mean of their beliefs: W^(ij) = I - (e_i - e_j)(e_i - e_j)'/2. No two ticks are at once, so that a round, which is a
unit of time, is a product of such matrices in the order of the ticks, and its expectation

    E W = exp(Σ_i r_i (W̄_i - I)),    W̄_i = the mean of W^(ij) over i's neighbours j

is exact. Each factor is doubly stochastic, whatever the rates: v_i = 1/A, and no belief is lost.

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

from pyro_fed.errors import GraphError
from pyro_fed.graph.base import FixedGraph, Graph


@dataclass(frozen=True, eq=False)
class Clocks(Graph):
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

    graph: FixedGraph
    rates: float | Sequence[float] = 1.0
    random = True

    def __post_init__(self) -> None:
        rates = np.asarray(self.rates, dtype=np.float64)
        if rates.shape not in ((), (self.num_agents,)) or not (np.isfinite(rates).all() and (rates >= 0).all()):
            raise GraphError(
                f"rates must be a number, or one for each of the {self.num_agents} agents, not negative, received "
                f"{self.rates}"
            )
        lonely = [i for i, found in enumerate(self._neighbours) if not len(found)]
        if lonely:
            raise GraphError(f"agents {lonely} have no neighbours to average with")

    @property
    def num_agents(self) -> int:
        return self.graph.num_agents

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
        for i, (rate, found) in enumerate(zip(self._rate, self._neighbours, strict=True)):
            for j in found:
                share = rate / (2 * len(found))
                generator[[i, j], [i, j]] -= share
                generator[[i, j], [j, i]] += share
        return sparse.csr_array(expm(generator))

    def expected(self, round: int) -> sparse.csr_array:
        """exp(Σ r_i (W̄_i - I))."""
        return self._expected

    def centrality(self, round: int = 0) -> np.ndarray:
        """Every agent's weight in the consensus, 1/A."""
        return np.full(self.num_agents, 1.0 / self.num_agents)
