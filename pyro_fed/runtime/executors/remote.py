"""Clients at workers in other processes: the server's requests, and the replies of a worker (`Host`).

The server knows the clients' states at the start of a phase, since the algorithm computes them. It requests them at
checkpoints, and at the end of a phase from which another one starts. Requests and replies may be lost. So every request
repeats the start of the phase, and the verdict on the worker's last messages, until the worker has answered; the worker
applies each of them once.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, concatenate, select, write
from pyro_fed.density.build import build
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.forms import JointProblem, NonCentred, noncentred_form
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import StoppedError
from pyro_fed.runtime.executors.base import Executor, Reply, Work
from pyro_fed.runtime.executors.local import Local


@dataclass(frozen=True)
class WorkerPhase:
    """A phase that begins at a worker, with the states of the worker's clients (k, ...)."""

    number: int
    algorithm: Algorithm
    local: State


@dataclass(frozen=True)
class Verdict:
    """The messages of a worker's clients that the server used in a round, see `Executor.settle`."""

    round: int
    taken: Tensor
    feedback: State


@dataclass(frozen=True)
class Request:
    """One request to a worker: for a round's work, for replies to a query (`indicator`), or for all states."""

    phase: WorkerPhase | None  # None once the worker has answered a request of this phase
    verdict: Verdict | None  # the last verdict; None once the worker has answered a request with it
    work: Work | None = None
    indicator: str | None = None


class Host:
    """A worker's clients, with their rows (k, n) and their numbers (k,) in the run."""

    def __init__(self, problem: Problem, data: ClientData, clients: Sequence[int], executor: Local) -> None:
        self.problem, self.data, self.clients, self.executor = problem, data, clients, executor
        self.phase = -1

    def answer(self, request: Request) -> Reply | State:
        """The answer to a request."""
        with torch.no_grad():
            if request.phase is not None and request.phase.number != self.phase:
                self._begin(request.phase)
            if request.verdict is not None and request.verdict.round == self.executor.waiting:
                self.executor.settle(request.verdict.taken, request.verdict.feedback)
            if request.work is None:
                return self.executor.collect()
            if request.indicator is not None:
                return self.executor.ask(request.indicator, request.work)
            return self.executor.execute(request.work)

    def _begin(self, phase: WorkerPhase) -> None:
        self.executor.start(phase.algorithm, self.problem, self.data, phase.local, self.clients)
        self.phase = phase.number


@dataclass(frozen=True)
class Share:
    """The part of a federation that a worker needs: the model's arguments with its own clients' rows."""

    arguments: Arguments
    plate: str
    whole: Mapping[str, int]  # sizes of the split plates with all clients' rows
    num_rows: int  # rows of all clients of the run
    dtype: torch.dtype
    quadrature: Quadrature
    form: type[Problem]  # the model unchanged, with the rows' own latents in the flat vector, or non-centred
    constants: dict[str, Tensor]  # values of `pyro.param` statements
    # the clients' rows (k, n); it contains tensors only for a model that indexes its own data, by row numbers
    data: ClientData
    clients: list[int]
    numbers: Tensor | None  # the rows' numbers among those of the run (m,); None if `data` holds the rows' tensors
    compiler: tuple[str, bool, int, float | None]  # level, auto, rounds and seconds
    device: torch.device

    def build(self, model: Callable[..., Any]) -> tuple[Problem, ClientData]:
        """The problem at the worker, checked as at the server, and the clients' rows."""
        size = self.arguments.num_rows or self.num_rows
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the server has issued the same warnings
            problem = build(
                *(model, self.arguments, self.plate, size, self.dtype),
                quadrature=self.quadrature,
                constants=self.constants,
                whole=self.whole,
            )
        problem = JointProblem.of(problem, self.numbers) if issubclass(self.form, JointProblem) else problem
        if issubclass(self.form, NonCentred):
            problem = noncentred_form(problem) or problem
        data = self.data._replace(rows=self.data.rows or problem.rows)
        return replace(problem, num_rows=self.num_rows, compiler=Compiler(*self.compiler), device=self.device), data


def share_of(problem: Problem, data: ClientData, clients: list[int], places: Tensor) -> Share:
    """The share of a worker whose clients have the numbers `clients` in the run and `places` (k,) in `data`."""
    index, num_rows = data.row_index[places], data.num_rows[places]
    valid = torch.arange(index.shape[1]) < num_rows.unsqueeze(-1)
    used = index[valid].unique()
    # Padding refers to the worker's first row, with weight zero.
    new_index = torch.where(valid, torch.searchsorted(used, index), 0)
    arguments, rows, numbers = problem.arguments, tuple[Tensor, ...](), None
    if arguments.num_rows is None:
        rows = tuple(leaf[used] if len(used) else torch.ones_like(leaf[:1]) for leaf in data.rows)
    else:
        arguments, numbers = arguments.alone(used), used if len(used) else used.new_zeros(1)
    compiler_of_run = problem.compiler
    compiler = compiler_of_run.level, compiler_of_run.auto, compiler_of_run.rounds, compiler_of_run.seconds
    return Share(
        arguments,
        problem.plate,
        problem.bound.split_plates,
        problem.num_rows,
        problem.dtype,
        problem.quadrature,
        type(problem),
        problem.bound.constants,
        ClientData(rows, new_index, num_rows),
        clients,
        numbers,
        compiler,
        problem.device,
    )


class Remote(Executor):
    """Clients at workers. A subclass defines the transport of requests (`exchange`), and the worker of each client."""

    _phase = 0

    def prepare(self) -> None:
        """Begin a phase; the workers receive it with their first request."""
        self._phase += 1
        self._begun: set[int] = set()
        self._verdicts: dict[int, Verdict] = {}
        self._round, self._asked = -1, dict[int, list[int]]()
        self._changed: set[int] = set()

    @property
    def states_are_here(self) -> bool:
        """False: the clients' states are at the workers."""
        return False

    @abstractmethod
    def worker_of(self, client: int) -> int:
        """The number of a client's worker."""

    def revived(self, workers: list[int]) -> list[int]:
        """Restart dead workers among those that did not answer, and return the restarted ones; by default none."""
        return []

    def restorable(self, worker: int) -> bool:
        """Whether the server knows the states of a worker's clients: there are none, or they are unchanged."""
        return not self.local or worker not in self._changed

    @abstractmethod
    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """The workers' replies to their requests; for a missing reply, a sentence with the reason."""

    def execute(self, work: Work) -> Reply:
        """Let each worker do its clients' part of the work; the new states stay at the workers."""
        if work.round != self._round:
            self._round, self._asked = work.round, {}
        positions = self._positions_by_worker(work.clients)
        for worker, at in positions.items():
            self._asked.setdefault(worker, []).extend(work.slots[i] for i in at.tolist())
        return merge_replies(positions, self._send({worker: work.part(at) for worker, at in positions.items()}))

    def settle(self, taken: Tensor, feedback: State) -> None:
        """Store the verdict, which each worker receives with its next request."""
        for worker, slots in self._asked.items():
            of_worker = torch.isin(taken, torch.tensor(slots))
            if bool(of_worker.any()):
                self._verdicts[worker] = Verdict(self._round, taken[of_worker], select(feedback, of_worker))
                self._changed.add(worker)

    def ask(self, kind: str, work: Work) -> State:
        """The clients' replies to a query, in the order of `work`; StoppedError if a worker has not replied."""
        positions = self._positions_by_worker(work.clients)
        answers = self._send({worker: work.part(at) for worker, at in positions.items()}, kind)
        self._require(answers, f"the schedule needs every client's {kind}")
        reports = concatenate([answers[worker] for worker in positions])
        return select(reports, torch.cat(list(positions.values())).argsort())

    def collect(self) -> State:
        """The states of all clients; changed states are requested from the workers."""
        positions = self._positions_by_worker(list(self.place))
        answers = self._send({worker: None for worker in positions if self.local and worker in self._changed})
        self._require(answers, "their states are needed, by the next phase or a checkpoint")
        for worker, state in answers.items():
            write(self.local, positions[worker], state)
            self._changed.discard(worker)
        return self.local

    def _send(self, parts: Mapping[int, Work | None], indicator: str | None = None) -> dict[int, Any]:
        """The workers' replies. Requests to dead workers that could be restarted are repeated."""
        answers = self._replies_of_one_attempt(parts, indicator)
        revived = self.revived([worker for worker, answer in answers.items() if isinstance(answer, str)])
        self._begun -= set(revived)
        return answers | self._replies_of_one_attempt({worker: parts[worker] for worker in revived}, indicator)

    def _replies_of_one_attempt(self, parts: Mapping[int, Work | None], indicator: str | None) -> dict[int, Any]:
        requests = {
            worker: Request(self._beginning(worker), self._verdicts.get(worker), work, indicator)
            for worker, work in parts.items()
        }
        answers = self.exchange(requests) if requests else {}
        for worker, answer in answers.items():
            if not isinstance(answer, str):
                self._begun.add(worker)
                self._verdicts.pop(worker, None)
        return answers

    def _require(self, answers: Mapping[int, Any], why: str) -> None:
        for worker, answer in answers.items():
            if isinstance(answer, str):
                clients = [client for client in self.place if self.worker_of(client) == worker]
                raise StoppedError(f"clients {clients}: {answer}; {why}. Run again, without them if they stay absent")

    def _beginning(self, worker: int) -> WorkerPhase | None:
        if worker in self._begun:
            return None
        at = self._positions_by_worker(list(self.place))[worker]
        return WorkerPhase(self._phase, self.algorithm, select(self.local, at))

    def _positions_by_worker(self, clients: list[int]) -> dict[int, Tensor]:
        """The positions in `clients` of each worker's clients, by worker."""
        positions: dict[int, list[int]] = {}
        for position, client in enumerate(clients):
            positions.setdefault(self.worker_of(client), []).append(position)
        return {worker: torch.tensor(at) for worker, at in sorted(positions.items())}


def merge_replies(parts: Mapping[int, Tensor], answers: Mapping[int, Reply | str]) -> Reply:
    """Merge the workers' replies, or the reasons for missing ones; `parts` are ascending positions in the work."""
    replies: list[Reply] = []
    positions: list[int] = []
    failures: dict[int, str] = {}
    for worker, at in parts.items():
        answer = answers[worker]
        failed = dict.fromkeys(range(len(at)), answer) if isinstance(answer, str) else answer.failures
        failures |= {int(at[i]): reason for i, reason in failed.items()}
        if not isinstance(answer, str) and len(failed) < len(at):
            replies.append(answer)
            positions += [int(position) for i, position in enumerate(at) if i not in failed]
    if not replies:
        return Reply({}, {}, failures)
    order = torch.tensor(positions).argsort()
    messages, info = (
        select(concatenate(states), order)
        for states in ([reply.messages for reply in replies], [reply.info for reply in replies])
    )
    return Reply(messages, info, failures)
