"""Executors within this process."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from pyro_fed.algorithm import Algorithm, State
from pyro_fed.data import ClientData
from pyro_fed.executors.base import Executor, Reply, Work, select
from pyro_fed.problem import Problem


class Vectorised(Executor):
    """All clients of a round in one call.

    Rounds with fewer clients than the largest so far are filled up with copies, which are dropped again,
    so that compiled steps keep their shapes.
    """

    def start(self, algorithm: Algorithm, problem: Problem, data: ClientData) -> None:
        """Prepare for a run."""
        super().start(algorithm, problem, data)
        self.width = 0

    def execute(self, work: Work) -> Reply:
        """Do one round's work in one call."""
        count = len(work.clients)
        self.width = max(self.width, count)
        fill = torch.arange(self.width) % count
        clients = torch.tensor(work.clients)[fill]
        noise = pytree.tree_map(lambda x: x[:, fill], self.noise(work))
        out = self.algorithm.local_step(
            self.problem, select(work.shared, fill), select(work.local, fill), _rows_of(self.data, clients), noise
        )
        messages, local, info = ({name: value[:count] for name, value in part.items()} for part in out)
        return Reply(messages, local, info)


class Sequential(Executor):
    """One client after the other."""

    def execute(self, work: Work) -> Reply:
        """Do one round's work client by client."""
        noise = self.noise(work)
        replies = []
        for i, client in enumerate(work.clients):
            one = slice(i, i + 1)
            replies.append(
                self.algorithm.local_step(
                    self.problem,
                    _slice(work.shared, one),
                    _slice(work.local, one),
                    _rows_of(self.data, torch.tensor([client])),
                    pytree.tree_map(lambda x, one=one: x[:, one], noise),
                )
            )
        messages, local, info = (
            {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*replies, strict=True)
        )
        return Reply(messages, local, info)


def _rows_of(data: ClientData, clients: torch.Tensor) -> ClientData:
    return ClientData(data.rows, data.row_index[clients], data.num_rows[clients])


def _slice(state: State, part: slice) -> State:
    return {name: value[part] for name, value in state.items()}
