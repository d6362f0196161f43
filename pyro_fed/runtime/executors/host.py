"""The clients of one worker process: their rows, their states, and how they answer the server.

A request may be lost, and so may its answer. So the server adds what the worker must know, the beginning of a phase and
the verdict on its last messages, to every request until one has been answered. The worker applies each of them once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.density.build import build
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.forms import JointProblem, NonCentred, noncentred_form
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.runtime.executors.base import Reply, Work
from pyro_fed.runtime.executors.local import Local


@dataclass(frozen=True)
class WorkerPhase:
    """A phase that begins at a worker, with the states of the worker's clients (k, ...)."""

    number: int
    algorithm: Algorithm
    local: State


@dataclass(frozen=True)
class Verdict:
    """The messages of a worker's clients in a round that the server has used, see `Executor.settle`."""

    round: int
    taken: Tensor
    told: State


@dataclass(frozen=True)
class Request:
    """One request to a worker.

    Attributes:
        phase: the present phase, until the worker has answered a request in it; then None.
        verdict: the last verdict, until the worker has answered a request after it; then None.
        work: a round's work; None asks for the states of all clients.
        indicator: the question to be answered in place of work, see `Executor.ask`; None for work.
    """

    phase: WorkerPhase | None
    verdict: Verdict | None
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
                self.executor.settle(request.verdict.taken, request.verdict.told)
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
    """The part of a federation that a worker needs: the model's arguments with its own clients' rows alone.

    Attributes:
        arguments: the model's arguments with these rows only.
        plate: name of the partitioned plate.
        whole: sizes of the split plates with all clients' rows.
        num_rows: number of rows of all clients of the run.
        dtype: dtype of the computation.
        quadrature: the run's quadrature rule, with its number of steps.
        form: class of the problem: the model unchanged, with the rows' own latents in the flat vector, or non-centred.
        constants: values of `pyro.param` statements.
        data: the clients' rows (k, n). It holds the rows' tensors only for a model that indexes its own data, by row
            numbers; else they are in `arguments`.
        clients: the clients' numbers in the run.
        numbers: the rows' numbers among those of the run (m,); None if `data` holds the rows' tensors.
        compiler: level, auto, rounds and seconds of the run's compiler.
        device: device of the clients' steps.
    """

    arguments: Arguments
    plate: str
    whole: Mapping[str, int]
    num_rows: int
    dtype: torch.dtype
    quadrature: Quadrature
    form: type[Problem]
    constants: dict[str, Tensor]
    data: ClientData
    clients: list[int]
    numbers: Tensor | None
    compiler: tuple[str, bool, int, float | None]
    device: torch.device

    def build(self, model: Callable[..., Any]) -> tuple[Problem, ClientData]:
        """The problem at the worker, checked as at the server, and the clients' rows."""
        size = self.arguments.num_rows or self.num_rows
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the server has given the same warnings
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
    """A worker's share; its clients have these numbers in the run and these places (k,) in `data`."""
    index, num_rows = data.row_index[places], data.num_rows[places]
    valid = torch.arange(index.shape[1]) < num_rows.unsqueeze(-1)
    used = index[valid].unique()
    # Padding points to the worker's first row; it has the weight zero.
    moved = torch.where(valid, torch.searchsorted(used, index), 0)
    arguments, rows, numbers = problem.arguments, tuple[Tensor, ...](), None
    if arguments.num_rows is None:
        rows = tuple(leaf[used] if len(used) else torch.ones_like(leaf[:1]) for leaf in data.rows)
    else:
        arguments, numbers = arguments.alone(used), used if len(used) else used.new_zeros(1)
    own = problem.compiler
    compiler = own.level, own.auto, own.rounds, own.seconds
    return Share(
        arguments,
        problem.plate,
        problem.bound.split_plates,
        problem.num_rows,
        problem.dtype,
        problem.quadrature,
        type(problem),
        problem.bound.constants,
        ClientData(rows, moved, num_rows),
        clients,
        numbers,
        compiler,
        problem.device,
    )
