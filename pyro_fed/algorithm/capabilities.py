"""Optional capabilities of algorithms: each is a second base class of the algorithms that need it.

    class P2PVI(Algorithm, OnGraph): ...

The round loop tests for them by `isinstance`. All other optional behaviour is a method of `Algorithm` with a default,
or of its `contributions`.

    OnGraph      the algorithm has no server: each agent has a state, and states are mixed over a graph
    Indicators   clients compute indicators from which a schedule chooses clients
    Chains       several chains, each at one client in a round; an executor may run several rounds at once
    SiteKeeping  clients keep states that depend on the server's use of their messages, such as sites
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from torch import Tensor

from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import prefixed, within
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    import torch

    from pyro_fed.algorithm.contract import Algorithm, Noise
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem
    from pyro_fed.density.rows.batches import ClientData
    from pyro_fed.graph import Consensus, Graph


class OnGraph(ABC):
    """Works without a server: `shared` has the state of each agent, and `combine` mixes those of neighbours.

    Class attributes:
        symmetric: entries of messages that are symmetric matrices, of which only a triangle is sent; `combine` receives
            the triangle.
        coarse: entries whose changes are sent in single precision after a round's first step.
        begins_apart: whether agents start from different states after an earlier phase, so that these are not compared.
    """

    begins_apart: ClassVar[bool] = False
    symmetric: ClassVar[frozenset[str]] = frozenset()
    coarse: ClassVar[frozenset[str]] = frozenset()

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm with the settings for a graph."""
        return self

    @abstractmethod
    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """Consensus steps per round on a connected graph; `sleepers`: agents may be absent. GraphError if not exact."""

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The kind of these steps: steps of W itself by default."""
        from pyro_fed.graph.consensus import unshifted_steps  # here, so that algorithms load without SciPy

        return unshifted_steps(self.consensus_steps(graph, sleepers))

    def witness(self, before: State, after: State) -> State:
        """What each agent sends to all others about its round, (A, ...), so that all compute the same figures.

        By default these are its states before and after the round; an algorithm may send less if `monitor` needs less.
        """
        return prefixed("before", before) | prefixed("after", after)

    def figures_of_witness(self, witness: State) -> dict[str, float]:
        """`Algorithm.monitor`, from the agents' `witness`, (A, ...)."""
        before, after = within(witness, "before"), within(witness, "after")
        figures: dict[str, float] = self.monitor(before, after)  # type: ignore[attr-defined]  # an algorithm has it
        return figures


class Indicators(ABC):
    """Computes indicators from which a schedule chooses clients.

    Class attributes:
        indicators: names of the available indicators, such as ("ksd", "hip").
    """

    indicators: ClassVar[tuple[str, ...]]

    @abstractmethod
    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """Indicators of one kind of C clients, (C, ...); arguments as for `Algorithm.local_step`."""

    @abstractmethod
    def importance(self, kind: str, shared: State, answers: State) -> Tensor:
        """The clients' nonnegative importance (K,), from their indicators (K, ...)."""


class LocalRounds(NamedTuple):
    """The received states, messages and figures of R rounds of C clients each, (R, C, ...)."""

    received: State
    messages: State
    figures: State


class Chains(ABC):
    """Several chains, each at one client in a round.

    The schedule chooses a client for each chain. A round's clients are in the order of the chains, so that a client may
    occur several times; messages have the same order.

    If the server makes no decision between some rounds (`rounds_ahead`), an executor may run several at once. Each
    client's reply is checked by itself (`Algorithm.objections`), and the server's part of these rounds, `combine` and
    `monitor`, follows afterwards.
    """

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """The number of chains, for each of which the schedule chooses a client."""

    @abstractmethod
    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """Messages (C, ...) for `combine` if visits failed, from the received ones (A, ...) of the places `slots`."""

    def rounds_ahead(self, shared: State) -> int:
        """Number of rounds up to and including the server's next decision; the default 1 is one round at a time.

        Values above 1 need `onward` and `combine_rounds`.
        """
        return 1

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """What the next round's clients (C,) receive, (C, ...), equal to `download` after `combine`."""
        raise NotImplementedError

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """The server's state after each of R rounds, whose messages are (R, C, ...)."""
        raise NotImplementedError

    def draw_noises(self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]) -> Noise | None:
        """The draws of `draw_noise` for V clients, stacked, (steps, V, ...); None to draw them one by one."""
        return None

    def local_rounds(
        self,
        problem: Problem,
        received: State,
        local: State,
        data: ClientData,
        clients: Tensor,
        at: Tensor,
        noise: Noise,
    ) -> LocalRounds | None:
        """The local steps of R successive rounds, if clients keep no new state.

        The result equals that of `local_step` in each round with `onward` in between; None means to compute it so.
        `received` (C, ...) is what the first round's clients received, `clients` (R, C) are each round's clients, `at`
        (R, C) their indices in `local` (K, ...) and `data`, and `noise` is that of all rounds, (steps, R C, ...).
        """
        return None


class SiteKeeping(ABC):
    """Clients keep states that depend on the server's use of their messages, such as sites.

    Class attributes:
        corrected: whether `settle` uses `correction_precision` and `correction_eta` of the feedback, so that a server
            may shorten messages.
    """

    corrected: ClassVar[bool] = False

    @abstractmethod
    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What the server sends to clients (C,) after a round, (C, ...), and further figures for the record, (C,)."""

    def clippable_part(self, messages: State) -> State:
        """Messages without the entries that a server must not use if it shortens messages."""
        return messages

    @abstractmethod
    def settle(self, feedback: State, local: State) -> State:
        """The new states of a round's C clients, from the server's `feedback` and the states from `local_step`."""

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """The states of an earlier run with other clients.

        `origin` (K',) is each current client's index among the earlier ones, -1 for a new client. SettingError if a
        client's contribution cannot be removed.
        """
        raise no_sites(self)


def no_distribution_left(algorithm: object) -> SettingError:
    """The error for remaining clients whose sites and the prior have an improper product."""
    return SettingError(
        f"{type(algorithm).__name__}: the product of the prior and the remaining clients' sites is improper: run "
        "it afresh on them"
    )


def no_sites(algorithm: object) -> SettingError:
    """The error for an algorithm without sites, to which contributions cannot be added or removed."""
    return SettingError(
        f"{type(algorithm).__name__} has no sites that could be put in or taken out: run it afresh on the clients that "
        "are left, or use FedEP"
    )


#: All capabilities.
CAPABILITIES = (OnGraph, Indicators, Chains, SiteKeeping)


def check_taken_up(algorithm: Algorithm) -> None:
    """Refuse methods of a capability that an algorithm does not declare, or of its contributions (SettingError)."""
    kind = type(algorithm)
    for capability in CAPABILITIES:
        required: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        methods = sorted(name for name in _methods(capability) | required if hasattr(kind, name))
        if isinstance(algorithm, capability) or not methods or not required <= set(methods):
            continue
        raise SettingError(
            f"{kind.__name__} has {', '.join(methods)}, which belongs to the capability {capability.__name__} and is "
            f"not called without it: write `class {kind.__name__}(Algorithm, {capability.__name__})`, with "
            f"`from pyro_fed.algorithm.capabilities import {capability.__name__}`"
        )
    if methods := sorted(name for name in _methods(Contributions) if callable(getattr(kind, name, None))):
        raise SettingError(
            f"{kind.__name__} has {', '.join(methods)}, which belongs to the clients' contributions and is not called "
            f"on the algorithm: write `class {kind.__name__}Contributions(Contributions)` with it, with `from "
            "pyro_fed.algorithm.contributions import Contributions`, and have the algorithm's method `contributions` "
            f"return `{kind.__name__}Contributions(self)`"
        )


def _methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
