"""Parts of a round that few algorithms have: indicators, and several chains, for which rounds can be done at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    import torch

    from pyro_fed.algorithm.contract import Noise
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem
    from pyro_fed.density.rows.batches import ClientData


class Indicators(ABC):
    """Answers a schedule that asks how important each client is.

    Class attributes:
        indicators: names of the indicators that it can give, such as ("ksd", "hip").
    """

    indicators: ClassVar[tuple[str, ...]]

    @abstractmethod
    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What C clients answer, (C, ...).

        Args:
            kind: one of `indicators`.
            problem: the model's densities.
            shared: what the clients received, (C, ...).
            local: their states, (C, ...).
            data: their rows.
        """

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
        """What `combine` gets where visits failed, (C, ...).

        Args:
            shared: the server's state.
            messages: those that came, (A, ...).
            slots: (A,) the places of those clients among the ones that were asked.
            asked: (C,) the clients that were asked.
        """

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
        """What `draw_noise` draws for each of V clients, stacked, (steps, V, ...); None to draw them one by one.

        Args:
            problem: the model's densities.
            num_rows: of each client, (V,).
            generators: one each, see `seeding.torch_generators`.
        """
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

        It equals `local_step` of each, with `onward` in between; if it is None, the rounds are done that way.

        Args:
            problem: the model's densities.
            received: what the first round's clients received, (C, ...).
            local: the states of those who are asked, (K, ...).
            data: their rows.
            clients: numbers of each round's clients, (R, C).
            at: where they stand in `local` and `data`, (R, C).
            noise: of all rounds, (steps, R C, ...).
        """
        return None
