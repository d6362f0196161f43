"""Executors whose clients live elsewhere, several at a worker, and keep their states there.

The server has the states at the beginning of a phase, since the algorithm makes them, and again where it asks: at the
end of a phase that another starts from, and at checkpoints. In between it sees messages alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm import Algorithm, State
from pyro_fed.data import ClientData
from pyro_fed.executors.base import Executor, Reply, Work, concatenate, write
from pyro_fed.executors.host import Phase, Request, Verdict
from pyro_fed.problem import Problem


class Remote(Executor):
    """Clients at workers; how a request gets there is the subclass's `exchange`."""

    _phase = 0

    def start(
        self,
        algorithm: Algorithm,
        problem: Problem,
        data: ClientData,
        local: State,
        clients: Sequence[int] | None = None,
    ) -> None:
        """Prepare for a phase; workers hear of it with their first request."""
        super().start(algorithm, problem, data, local, clients)
        self._phase += 1
        self._begun: set[int] = set()
        self._verdicts: dict[int, Verdict] = {}

    @abstractmethod
    def worker_of(self, client: int) -> int:
        """The worker that a client lives at."""

    @abstractmethod
    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """The workers' answers to their requests."""

    def execute(self, work: Work) -> Reply:
        """Each worker does the part of its clients; their new states stay there."""
        self._round, self._parts = work.round, self._split(work.clients)
        answers = self._send({worker: _part(work, at) for worker, at in self._parts.items()})
        replies = [answers[worker] for worker in self._parts]
        order = self._order()
        messages, info = (
            {name: value[order] for name, value in concatenate(parts).items()}
            for parts in ([reply.messages for reply in replies], [reply.info for reply in replies])
        )
        return Reply(messages, info)

    def settle(self, told: State) -> None:
        """The verdict goes to a worker with its next request."""
        for worker, at in self._parts.items():
            self._verdicts[worker] = Verdict(self._round, _rows(told, at))

    def ask(self, kind: str, work: Work) -> State:
        """The clients' reports, worker by worker."""
        self._parts = self._split(work.clients)
        answers = self._send({worker: _part(work, at) for worker, at in self._parts.items()}, kind)
        reports = concatenate([answers[worker] for worker in self._parts])
        return {name: value[self._order()] for name, value in reports.items()}

    def collect(self) -> State:
        """The states of all clients, from the workers that have changed them."""
        homes = self._split(list(self.place))
        answers = self._send({worker: None for worker in homes if worker in self._begun})
        for worker, state in answers.items():
            write(self.local, homes[worker], state)
        return self.local

    def _send(self, parts: Mapping[int, Work | None], indicator: str | None = None) -> dict[int, Any]:
        requests = {
            worker: Request(self._beginning(worker), self._verdicts.get(worker), work, indicator)
            for worker, work in parts.items()
        }
        answers = self.exchange(requests)
        for worker in answers:
            self._begun.add(worker)
            self._verdicts.pop(worker, None)
        return answers

    def _beginning(self, worker: int) -> Phase | None:
        if worker in self._begun:
            return None
        at = self._split(list(self.place))[worker]
        return Phase(self._phase, self.algorithm, _rows(self.local, at))

    def _split(self, clients: list[int]) -> dict[int, Tensor]:
        """Positions in `clients` of each worker's, in order."""
        homes: dict[int, list[int]] = {}
        for position, client in enumerate(clients):
            homes.setdefault(self.worker_of(client), []).append(position)
        return {worker: torch.tensor(at) for worker, at in sorted(homes.items())}

    def _order(self) -> Tensor:
        """Where the round's clients stand in the workers' answers, put one after the other."""
        return torch.cat(list(self._parts.values())).argsort()


def _part(work: Work, at: Tensor) -> Work:
    return replace(work, clients=[work.clients[i] for i in at.tolist()], shared=_rows(work.shared, at))


def _rows(state: State, at: Tensor) -> State:
    """Rows of a state; what is the same for all is not copied."""
    return {
        name: value[:1].expand(len(at), *value.shape[1:]) if value.dim() and value.stride(0) == 0 else value[at]
        for name, value in state.items()
    }
