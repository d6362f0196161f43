"""The interface of graphs: the mixing matrix of each round, and what it does in the long run.

Source: Wang et al., Section II and Assumption 1. For W that changes from round to round, centrality becomes
Kolmogorov's absolute probability sequence,

    v(t) = v(t+1) W(t),

so that what agent i puts in during round t ends in every belief with weight v_i(t); for a fixed W this is the
paper's v = v W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from pyro_fed.conventions.calls import Checked
from pyro_fed.errors import GraphError
from pyro_fed.graph import analysis
from pyro_fed.graph.consensus import Consensus, along_circuit, fastest, tree_steps, unshifted_steps
from pyro_fed.graph.mixing import as_matrix, check_aperiodic, check_connected, components

if TYPE_CHECKING:
    import networkx as nx


class Graph(ABC, metaclass=Checked):
    """Who talks to whom, and how much they believe it, in each round.

    Attributes:
        random: whether the rounds' matrices are drawn at random.
    """

    random: bool = False

    @property
    def window(self) -> int:
        """Rounds after which the sequence repeats (1: fixed, or random with one law in every round)."""
        return 1

    @property
    @abstractmethod
    def num_agents(self) -> int:
        """The number of agents, A."""

    @abstractmethod
    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        """W of one round, (A, A), rows summing to one.

        Args:
            round: the round, from 0.
            rng: randomness of this round, a function of the seed and the round alone.
        """

    @abstractmethod
    def expected(self, round: int) -> sparse.csr_array:
        """The expectation of `weights` over its randomness, (A, A)."""

    @abstractmethod
    def centrality(self, round: int = 0) -> np.ndarray:
        """v(t), (A,): positive, summing to one over each part that stays connected."""

    def active(self, round: int) -> list[int] | None:
        """The agents that work in this round; None for all (a schedule may still put some to sleep)."""
        return None

    def labels(self, round: int) -> np.ndarray:
        """(A,) the number of the connected part that each agent is in, over the window from `round` on."""
        return components(self.support(round))

    def support(self, round: int = 0) -> sparse.csr_array:
        """Links of the window that starts at `round`: positive where i hears j at least once, (A, A)."""
        return sum((self.expected(round + t) for t in range(1, self.window)), self.expected(round))

    def check(self) -> None:
        """Require that beliefs meet: connected and aperiodic over the window.

        Raises:
            GraphError: lists the components, or names the period.
        """
        where = "W" if self.window == 1 else f"the union of W over {self.window} rounds"
        check_connected(self.support(), where)
        check_aperiodic(sparse.csr_array(self._product()), "W" if self.window == 1 else "W over one window")

    @property
    def keeps_centrality(self) -> bool:
        """Whether v is unchanged when a link fails both ways (the round's W is reversible)."""
        return all(analysis.detailed_balance(self.expected(t)) is not None for t in range(self.window))

    @cached_property
    def gap(self) -> float:
        """Spectral gap a round, 1 - |λ_2|^(1/window) of the window's (expected) product."""
        rate = analysis.second_eigenvalue(sparse.csr_array(self._product()))
        return float(min(1.0, max(0.0, 1.0 - rate ** (1.0 / self.window))))

    def consensus_rounds(self, tolerance: float = 1e-3) -> float:
        """Rounds in which disagreement is expected to shrink.

        Args:
            tolerance: to this share of what it was, in (0, 1).

        Returns:
            A whole number of rounds, infinite where the gap is zero.

        Raises:
            GraphError: a tolerance outside (0, 1).
        """
        return analysis.consensus_rounds(self.gap, tolerance)

    def consensus(self, tolerance: float) -> Consensus:
        """The steps that shrink disagreement: of W itself, where it changes.

        Args:
            tolerance: to this share of what it was, in (0, 1).

        Raises:
            GraphError: a tolerance outside (0, 1).
        """
        return unshifted_steps(int(self.consensus_rounds(tolerance)))

    def sums(self, tolerance: float) -> Consensus:
        """The steps that take the fewest messages, where no agent may be missing; those of `consensus` by default.

        Args:
            tolerance: share of the disagreement that may be left, in (0, 1).

        Raises:
            GraphError: a tolerance outside (0, 1).
        """
        return self.consensus(tolerance)

    def links(self, round: int = 0) -> int:
        """How many directed links there are between different agents.

        Args:
            round: the first of the window.
        """
        support = self.support(round)
        return int(support.nnz - np.count_nonzero(support.diagonal()))

    def to_networkx(self) -> nx.DiGraph:
        """The window's links with their mean weights, as edges from the sender to the receiver."""
        import networkx as nx

        return nx.from_scipy_sparse_array(self.support().T / self.window, create_using=nx.DiGraph)

    def _product(self) -> Any:
        """W(window - 1) ... W(0) in expectation."""
        product = self.expected(0)
        for t in range(1, self.window):
            product = self.expected(t) @ product
        return product


@dataclass(frozen=True, eq=False)
class FixedGraph(Graph):
    """A graph with one W in every round.

    Args:
        matrix: W, (A, A): rows sum to one, W_ij is the weight agent i gives to agent j.
        name: of the topology, for figures and messages.

    Raises:
        GraphError: a matrix that is not stochastic.

    Example:
        >>> pf.graph.FixedGraph([[0.5, 0.5], [0.5, 0.5]], "pair").gap
        1.0
    """

    matrix: Any
    name: str = "graph"

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", as_matrix(self.matrix))

    @property
    def num_agents(self) -> int:
        return int(self.matrix.shape[0])

    def weights(self, round: int, rng: np.random.Generator) -> sparse.csr_array:
        return self.matrix

    def expected(self, round: int) -> sparse.csr_array:
        return self.matrix

    @cached_property
    def _centrality(self) -> np.ndarray:
        return analysis.stationary_distribution(self.matrix)

    def centrality(self, round: int = 0) -> np.ndarray:
        """Stationary distribution of W."""
        return self._centrality

    def consensus(self, tolerance: float) -> Consensus:
        """As few steps as a polynomial of W needs, or most of them along a circuit, see `graph.consensus`."""
        over_all = fastest(self.matrix, tolerance, self.consensus_rounds(tolerance))
        return along_circuit(self.matrix, self.centrality(), over_all, tolerance) or over_all

    def sums(self, tolerance: float) -> Consensus:
        """Up a tree and down again, see `graph.consensus`; no disagreement remains."""
        return tree_steps(self.matrix, self.centrality()) or self.consensus(tolerance)

    def __repr__(self) -> str:
        return f"FixedGraph({self.name}, {self.num_agents} agents, {self.links()} links)"


def require_agents(graph: Graph, num_agents: int) -> None:
    """Require a graph of as many agents as there are clients."""
    if graph.num_agents != num_agents:
        raise GraphError(
            f"the graph has {graph.num_agents} agents, but the federation has {num_agents} clients: "
            f"build the graph for {num_agents} agents, or the federation with num_clients={graph.num_agents}"
        )


def require_centrality(graph: Graph, name: str, sleepers: bool) -> None:
    """Require a graph whose centrality stays as it is where agents sleep or links fail, so that data count once."""
    if (sleepers or graph.random) and not graph.keeps_centrality:
        raise GraphError(
            f"{name}: agents that are asleep change the centrality of a graph whose W is not reversible, so data "
            "would no longer count once; build it with mixing='metropolis'"
        )
