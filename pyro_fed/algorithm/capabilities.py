"""Parts of a run that few algorithms have: small classes, each a second base class of the algorithms that need it.

    class P2PVI(Algorithm, OnGraph): ...

The round loop asks by `isinstance`. What else an algorithm may do is a method of `Algorithm` with a default, or of its
`contributions`.

    OnGraph      works without a server: one state an agent, mixed over a graph
    Indicators   answers a schedule that asks how important each client is
    Chains       several chains, each at a client of its own in a round; rounds that may be done at once
    SiteKeeping  its clients keep what the server made of their messages
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
    """Works without a server: `shared` has one state an agent, and `combine` mixes those of neighbours.

    Class attributes:
        symmetric: entries of messages that are symmetric matrices, of which a triangle travels; `combine` is given them
            as it travels.
        coarse: entries of which single precision is enough: after a round's first step their changes are told in it.
        begins_apart: after an earlier phase agents begin at states of their own, so that these are not compared.
    """

    begins_apart: ClassVar[bool] = False
    symmetric: ClassVar[frozenset[str]] = frozenset()
    coarse: ClassVar[frozenset[str]] = frozenset()

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm with the settings that the graph asks for."""
        return self

    @abstractmethod
    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """Consensus steps a round on a connected graph, maybe with `sleepers`; GraphError if it is not exact there."""

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """What these steps are: of W itself, unless the algorithm says otherwise."""
        from pyro_fed.graph.consensus import unshifted_steps  # here, so that algorithms load without SciPy

        return unshifted_steps(self.consensus_steps(graph, sleepers))

    def witness(self, before: State, after: State) -> State:
        """What each agent tells all others about its round, so that all judge it in the same way, (A, ...).

        By default its whole states before and after; an algorithm whose `monitor` needs less tells less.
        """
        return prefixed("before", before) | prefixed("after", after)

    def figures_of_witness(self, told: State) -> dict[str, float]:
        """`Algorithm.monitor`, from the agents' `witness`, (A, ...)."""
        before, after = within(told, "before"), within(told, "after")
        figures: dict[str, float] = self.monitor(before, after)  # type: ignore[attr-defined]  # an algorithm has it
        return figures


class Indicators(ABC):
    """Answers a schedule that asks how important each client is.

    Class attributes:
        indicators: names of the indicators that it can give, such as ("ksd", "hip").
    """

    indicators: ClassVar[tuple[str, ...]]

    @abstractmethod
    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What C clients answer, (C, ...), of a kind of `indicators`; arguments as for `Algorithm.local_step`."""

    @abstractmethod
    def importance(self, kind: str, shared: State, answers: State) -> Tensor:
        """The clients' importance (K,), not negative, from their answers (K, ...)."""


class LocalRounds(NamedTuple):
    """The received states, messages and figures of R rounds of C clients each, (R, C, ...)."""

    received: State
    messages: State
    figures: State


class Chains(ABC):
    """Several chains, each at a client of its own in a round.

    The schedule is asked once a chain, and the clients of a round are the answers, one after the other: a client may
    stand there several times, messages come in that order, and `combine` knows which chain each belongs to.

    Where the server decides nothing between some rounds (`rounds_ahead`), an executor may do several before it answers.
    A client's reply is judged by itself (`Algorithm.objections`), and what is left of the server's part of a round,
    `combine` and `monitor`, is made up for afterwards.
    """

    @property
    @abstractmethod
    def num_slots(self) -> int:
        """How many times a round the schedule is asked: the number of chains."""

    @abstractmethod
    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """What `combine` gets where visits failed, (C, ...), by messages that came, (A, ...), to places `slots`."""

    def rounds_ahead(self, shared: State) -> int:
        """Rounds until the server looks at what it has, that with the look included; 1, the default, is one at a time.

        Where it is more, `onward` and `combine_rounds` are needed.
        """
        return 1

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """What the next round's clients (C,) receive, as `download` would say after `combine`, (C, ...)."""
        raise NotImplementedError

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """The server's state after each of R rounds, whose messages are (R, C, ...)."""
        raise NotImplementedError

    def draw_noises(self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]) -> Noise | None:
        """What `draw_noise` draws for each of V clients, stacked, (steps, V, ...); None to draw them one by one."""
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
        """The local steps of R rounds one after the other, where clients keep nothing new of them.

        It equals `local_step` of each, with `onward` in between; None does them that way. `received` (C, ...) is what
        the first round's clients received, `clients` (R, C) are each round's, `at` (R, C) their places in `local`
        (K, ...) and `data`, and `noise` is that of all rounds, (steps, R C, ...).
        """
        return None


class SiteKeeping(ABC):
    """Its clients keep what the server made of their messages, such as their sites.

    Class attributes:
        corrected: `settle` takes up `correction_precision` and `correction_eta` of what it is told, so that a server
            may shorten messages.
    """

    corrected: ClassVar[bool] = False

    @abstractmethod
    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What the server tells clients (C,) after a round, (C, ...), and more figures for the record, (C,)."""

    def clippable_part(self, messages: State) -> State:
        """Messages without what a server that shortens them must not look at."""
        return messages

    @abstractmethod
    def settle(self, told: State, local: State) -> State:
        """What the C clients of a round keep, by the server's `feedback` and the states that `local_step` returned."""

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """The states of an earlier run with other clients.

        `origin` (K',) says where each present client was among the earlier ones, -1 where it is new. SettingError if a
        client's contribution cannot be taken out.
        """
        raise no_sites(self)


def no_distribution_left(algorithm: object) -> SettingError:
    """The error of an algorithm whose prior and sites of the clients that are left cannot be multiplied."""
    return SettingError(
        f"{type(algorithm).__name__}: the prior and the sites of the clients that are left are no distribution: run "
        "it afresh on them"
    )


def no_sites(algorithm: object) -> SettingError:
    """The error of an algorithm whose clients' contributions cannot be put in or taken out."""
    return SettingError(
        f"{type(algorithm).__name__} has no sites that could be put in or taken out: run it afresh on the clients that "
        "are left, or use FedEP"
    )


#: All capabilities.
CAPABILITIES = (OnGraph, Indicators, Chains, SiteKeeping)


def check_taken_up(algorithm: Algorithm) -> None:
    """Refuse, by a SettingError, methods of a capability that an algorithm does not have, or of its contributions."""
    kind = type(algorithm)
    for capability in CAPABILITIES:
        required: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        found = sorted(name for name in _methods(capability) | required if hasattr(kind, name))
        if isinstance(algorithm, capability) or not found or not required <= set(found):
            continue
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the capability {capability.__name__} and is not "
            f"called without it: write `class {kind.__name__}(Algorithm, {capability.__name__})`, with "
            f"`from pyro_fed.algorithm.capabilities import {capability.__name__}`"
        )
    if found := sorted(name for name in _methods(Contributions) if callable(getattr(kind, name, None))):
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the clients' contributions and is not called on "
            f"the algorithm: write `class {kind.__name__}Contributions(Contributions)` with it, with `from "
            "pyro_fed.algorithm.contributions import Contributions`, and have the algorithm's method `contributions` "
            f"return `{kind.__name__}Contributions(self)`"
        )


def _methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
