"""The shapes and dtypes that the server expects of a client's reply, from its own model, not from the message."""

from __future__ import annotations

from dataclasses import replace

import torch

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.runtime.executors.base import Work
from pyro_fed.runtime.executors.local import Sequential
from pyro_fed.runtime.messages.codec import Spec, spec_of, spec_of_one


class Expected:
    """The shapes and dtypes of a phase's messages, from a step on one row, taken once, at the first question."""

    def __init__(self, algorithm: Algorithm, problem: Problem, data: ClientData, local: State) -> None:
        self._given = algorithm, problem, data, _first_client(local)
        self._messages: Spec | None = None

    def messages(self, work: Work) -> Spec:
        """Shapes and dtypes of one client's message, by name."""
        if self._messages is None:
            self._messages, *_ = expected_reply(*self._given, work)
        return self._messages


def expected_reply(
    algorithm: Algorithm, problem: Problem, data: ClientData, local: State, work: Work
) -> tuple[Spec, Spec, Spec]:
    """Shapes and dtypes of one client's message, figures and new state, from a step on one row of the server's own.

    The shapes of a message follow from the model and the settings, not from the client's rows. The first client of
    `work`, its state and its first row are used.
    """
    if (like := algorithm.reply_like(work.shared)) is not None:
        return spec_of(like), {}, {}
    row = ClientData(data.rows, data.row_index[:1, :1], torch.ones_like(data.num_rows[:1]))
    eager = replace(problem, compiler=Compiler("loop" if problem.looped else "off"))
    executor = Sequential()
    executor.start(algorithm, eager, row, _first_client(local))
    reply = executor.execute(Work(work.round, work.seed, [0], _first_client(work.shared)))
    return spec_of_one(reply.messages), spec_of_one(reply.info), spec_of_one(executor.new[-1].states)


def _first_client(state: State) -> State:
    return {name: value[:1].clone() for name, value in state.items()}
