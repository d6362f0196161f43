"""The interface of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed import seeding
from pyro_fed.algorithm import Algorithm, State

if TYPE_CHECKING:
    from pyro_fed.data import ClientData
    from pyro_fed.problem import Problem


@dataclass(frozen=True)
class Work:
    """One round's work.

    Attributes:
        round: the round, from 0, over all phases of the run.
        seed: the run's seed.
        clients: the scheduled clients, (C,); one may stand twice (two chains at one client).
        shared: what they receive, (C, ...).
        local: their states, (C, ...).
    """

    round: int
    seed: int
    clients: list[int]
    shared: State
    local: State


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        messages: of the clients that replied, in the order of the work, (A, ...).
        local: their new states, likewise.
        info: their figures, likewise.
        failures: why the others did not, by their position in `Work.clients`. Where all failed, A is zero and the
            dictionaries may be empty.
    """

    messages: State
    local: State
    info: State
    failures: dict[int, str] = field(default_factory=dict)


class Executor(ABC):
    """Does the local steps of a round."""

    def start(self, algorithm: Algorithm, problem: Problem, data: ClientData) -> None:
        """Prepare for a run; `data` are all clients' rows, index (K, n) and num_rows (K,)."""
        self.algorithm, self.problem, self.data = algorithm, problem, data
        self.row_counts = data.num_rows.tolist()

    @abstractmethod
    def execute(self, work: Work) -> Reply:
        """Do one round's work; results do not depend on the executor."""

    def ask(self, kind: str, work: Work) -> State:
        """The indicator that a schedule asks for, of all clients in `work`, in one call."""
        clients = torch.tensor(work.clients)
        data = type(self.data)(self.data.rows, self.data.row_index[clients], self.data.num_rows[clients])
        shared = {name: value.contiguous() for name, value in work.shared.items()}  # as compiled steps expect
        return self.algorithm.report(kind, self.problem, shared, work.local, data)

    def stop(self) -> None:
        """Release what `start` took."""
        return

    def noise(self, work: Work) -> Any:
        """The clients' randomness stacked on axis 1: (steps, C, ...)."""
        if self.algorithm.deterministic:
            return ()
        seen: dict[int, int] = {}
        drawn = []
        for client in work.clients:
            repeat = seen[client] = seen.get(client, -1) + 1
            generator = seeding.torch_generator(work.seed, seeding.CLIENT, work.round, client, repeat)
            drawn.append(self.algorithm.draw_noise(self.problem, self.row_counts[client], generator))
        return pytree.tree_map(lambda *parts: torch.stack(parts, dim=1), *drawn)


def select(state: State, index: Tensor) -> State:
    """Rows `index` of the leading axis."""
    return {name: value[index] for name, value in state.items()}
