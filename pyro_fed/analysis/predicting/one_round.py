"""Questions about a result that clients answer in one round of messages, on any executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Algorithm, Start, required_start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.problem import Problem
from pyro_fed.errors import QuorumError
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.executors import resolve
from pyro_fed.runtime.rounds import run_phases

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.runtime.executors import Executor


@dataclass(frozen=True, kw_only=True)
class OneRound(Algorithm):
    """A question as an algorithm of one round: the server's state is what clients need, then also their answers."""

    draws_are: ClassVar[str] = "chains"
    needs_all: ClassVar[bool] = True
    #: The kind of message that a client's answer is, in the site's policy.
    answer_kind: ClassVar[str]

    def default_rounds(self, num_clients: int) -> int:
        """One."""
        return 1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """What the clients need, which the caller hands in."""
        return required_start(start, self)

    def cells(self, messages: State) -> dict[str, int]:
        """Numbers of rows by cell of the table that is in one client's answer (1, ...); none by default."""
        return {}

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """None: no size of a sum is impossible for an honest client."""
        return {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The state with the clients' answers, each (K, ...)."""
        return {**shared, **messages}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """No draws (1, 0, 0): the answers are in the state."""
        return torch.empty(1, 0, 0)


def answers(
    question: OneRound, shared: State, federation: Federation, executor: str | Executor, seed: int, counted: str
) -> State:
    """The server's state with all clients' answers (each has `counted`); QuorumError if one is missing."""
    record = Record(federation.client_names)
    context = Context(federation, federation.problem, None, resolve(executor), seed, progress=False, record=record)
    context.start = Start(shared, {})
    with threads(1), torch.no_grad():
        try:
            found = run_phases(question, context, 1, None)
        finally:
            context.executor.close()
    if len(found.get(counted, ())) < federation.num_clients:
        raise QuorumError(
            f"{len(found.get(counted, ()))} of {federation.num_clients} clients answered, but sums over all rows need "
            "every client: ask again when all can be reached"
        )
    return found
