"""Work over a graph of agents, without a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from pyro_fed.algorithm.states import prefixed, within

if TYPE_CHECKING:
    from pyro_fed.algorithm.states import State
    from pyro_fed.graph import Consensus, Graph


class OnGraph(ABC):
    """Works without a server: `shared` has one state an agent, and `combine` mixes those of neighbours.

    Class attributes:
        symmetric: entries of messages that are symmetric matrices, of which a triangle travels; `combine` is given them
            as it travels.
        coarse: entries of which single precision is enough: after a round's first step their changes are told in it.
    """

    symmetric: ClassVar[frozenset[str]] = frozenset()
    coarse: ClassVar[frozenset[str]] = frozenset()

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm with the settings that the graph asks for."""
        return self

    @abstractmethod
    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """Consensus steps a round.

        Args:
            graph: who talks to whom; already found to be connected.
            sleepers: whether a schedule may put agents to sleep.

        Raises:
            GraphError: the algorithm is not exact on this graph.
        """

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """What these steps are: of W itself, unless the algorithm says otherwise.

        Args:
            graph: who talks to whom.
            sleepers: whether a schedule may put agents to sleep.
        """
        from pyro_fed.graph.consensus import unshifted_steps  # here, so that algorithms load without SciPy

        return unshifted_steps(self.consensus_steps(graph, sleepers))

    def witness(self, before: State, after: State) -> State:
        """What each agent tells all others about its round, so that all judge it in the same way, (A, ...).

        By default both whole states; an algorithm whose `monitor` needs less tells less.

        Args:
            before: the agents' states before the round, (A, ...).
            after: their states after it.
        """
        return prefixed("before", before) | prefixed("after", after)

    def figures_of_witness(self, told: State) -> dict[str, float]:
        """`Algorithm.monitor`, from what the agents tell each other.

        Args:
            told: their `witness`, (A, ...).
        """
        before, after = within(told, "before"), within(told, "after")
        figures: dict[str, float] = self.monitor(before, after)  # type: ignore[attr-defined]  # an algorithm has it
        return figures
