"""The only round loop: phases of algorithms, rounds of clients, and what is kept of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_fed import seeding
from pyro_fed.algorithm import Algorithm, Start, State
from pyro_fed.checkpoint import Checkpoint, Saved
from pyro_fed.data import ClientData
from pyro_fed.errors import DivergenceError
from pyro_fed.executors import Executor, Reply, Work
from pyro_fed.executors.base import select
from pyro_fed.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.network import Network, connect
from pyro_fed.problem import Problem
from pyro_fed.record import Asked, Record, Round, as_figures, num_bytes
from pyro_fed.schedule import Informed, Schedule


@dataclass
class Context:
    """What stays the same over the phases of a run."""

    federation: Federation
    problem: Problem
    graph: Graph | None
    executor: Executor
    seed: int
    progress: bool
    record: Record
    checkpoint: Checkpoint | None = None


@dataclass
class _Phase:
    """An algorithm on its way through its rounds.

    Attributes:
        number: 0 for the first of the run.
        rounds: how many it is to have.
        given: the user's schedule, of the last phase.
        done: rounds it has had.
    """

    algorithm: Algorithm
    number: int
    rounds: int
    given: Schedule | None
    shared: State
    local: State
    done: int = 0


def run_phases(algorithm: Algorithm, context: Context, rounds: int, given: Schedule | None) -> Start:
    """Run what the algorithm starts from, by its own schedule, then the algorithm itself, by the user's.

    A checkpoint that holds an unfinished run is taken up where it was left.
    """
    saved = context.checkpoint.load() if context.checkpoint is not None else None
    chain = _chain(algorithm, context.problem)
    start: Start | None = None
    for number, part in enumerate(chain):
        if saved is not None and number < saved.phase:
            continue
        last = part is algorithm
        length = rounds if last else part.default_rounds(context.federation.num_clients)
        if saved is not None and number == saved.phase:
            phase = _Phase(part, number, length, given if last else None, saved.shared, saved.local, saved.done)
            context.record.restore(saved.record)
        else:
            phase = _begin(part, number, context, length, given if last else None, start)
        _loop(phase, context)
        start = Start(phase.shared, phase.local)
    assert start is not None
    return start


def _chain(algorithm: Algorithm, problem: Problem) -> list[Algorithm]:
    """The algorithm after all that it starts from."""
    chain = [algorithm]
    while (first := chain[0].warm_start(problem)) is not None:
        chain.insert(0, first)
    return chain


def _begin(
    algorithm: Algorithm, number: int, context: Context, rounds: int, given: Schedule | None, start: Start | None
) -> _Phase:
    record = context.record
    record.figures.clear()
    record.converged = None
    rounds = 0 if record.interrupted else rounds
    generator = seeding.torch_generator(context.seed, seeding.SERVER, len(record.rounds))
    shared, local = algorithm.init(context.problem, _num_clients(algorithm, context), generator, start)
    local = {name: value.clone() for name, value in local.items()}  # it is written to in place
    return _Phase(algorithm, number, rounds, given, shared, local)


def _data(algorithm: Algorithm, context: Context) -> ClientData:
    return context.federation.pooled_data() if algorithm.centralized else context.federation.client_data()


def _num_clients(algorithm: Algorithm, context: Context) -> int:
    return 1 if algorithm.centralized else context.federation.num_clients


def _loop(phase: _Phase, context: Context) -> None:
    """Rounds until the algorithm has converged, has had them all, or the user interrupts."""
    algorithm, record = phase.algorithm, context.record
    if record.converged:
        return
    data = _data(algorithm, context)
    num_clients = _num_clients(algorithm, context)
    schedule = algorithm.default_schedule() if phase.given is None or algorithm.centralized else phase.given
    context.problem.compiler.rounds = phase.rounds  # what is worth compiling depends on them
    context.executor.start(algorithm, context.problem, data)
    network = connect(algorithm, context.graph, phase.given, num_clients, context.seed)
    before = len(record.rounds) - phase.done
    bar = tqdm(
        range(phase.done, phase.rounds),
        initial=phase.done,
        total=phase.rounds,
        desc=type(algorithm).__name__,
        disable=not context.progress,
        unit="round",
    )
    try:
        for index in bar:
            clients, asked = _select(phase, context, schedule, index)
            clients = network.awake(len(record.rounds), clients)
            after = _one_round(phase, context, network, data, clients)
            record.rounds[-1].asked = asked
            record.figures.append(algorithm.monitor(phase.shared, after) | network.figures())
            phase.shared, phase.done = after, index + 1
            bar.set_postfix_str(_postfix(context, clients, record.figures[-1]))
            record.converged = _state_of(phase, record)
            _save(phase, context)
            if record.converged:
                break
    except KeyboardInterrupt:
        record.interrupted = True
        del record.rounds[before + phase.done :]  # a round cut short does not count
        record.notes.append(f"{type(algorithm).__name__} was interrupted after {phase.done} of {phase.rounds} rounds")
    finally:
        bar.close()
        context.executor.stop()
    record.notes += network.notes()


def _state_of(phase: _Phase, record: Record) -> bool | None:
    """Whether the algorithm has converged; None while it may yet, or where it has no criterion."""
    if phase.algorithm.converged(record.figures):
        return True
    return False if phase.algorithm.stops_itself and phase.done == phase.rounds else None


def _save(phase: _Phase, context: Context) -> None:
    if context.checkpoint is not None:
        record = context.record.to_plain()
        context.checkpoint.save(Saved(phase.number, phase.done, phase.shared, phase.local, record))


def _select(phase: _Phase, context: Context, schedule: Schedule, index: int) -> tuple[list[int], Asked | None]:
    """The clients of a round, and the bytes that every client received and sent for the choice.

    One answer of the schedule, or one for each of the algorithm's slots; it may ask all clients first.
    """
    algorithm, num_clients = phase.algorithm, len(context.executor.row_counts)
    rng = seeding.numpy_generator(context.seed, seeding.SCHEDULE, index)
    if isinstance(schedule, Informed):
        return _ask(phase, context, schedule, rng)
    if algorithm.num_slots is None:
        return schedule.select(index, num_clients, rng), None
    rngs = [seeding.numpy_generator(context.seed, seeding.SCHEDULE, index, slot) for slot in range(algorithm.num_slots)]
    return [client for one in rngs for client in schedule.select(index, num_clients, one)], None


def _ask(
    phase: _Phase, context: Context, schedule: Informed, rng: np.random.Generator
) -> tuple[list[int], Asked | None]:
    """All clients' reports of how important they are, and the choice by them."""
    everyone = torch.arange(len(context.executor.row_counts))
    received = phase.algorithm.download(phase.shared, everyone)
    work = Work(len(context.record.rounds), context.seed, everyone.tolist(), received, phase.local)
    reports = context.executor.ask(schedule.asks, work)
    importance = phase.algorithm.importance(schedule.asks, phase.shared, reports).double().cpu().numpy()
    return schedule.choose(importance, rng), (num_bytes(received), num_bytes(reports))


def _one_round(phase: _Phase, context: Context, network: Network, data: ClientData, clients: list[int]) -> State:
    algorithm, record = phase.algorithm, context.record
    name, number = type(algorithm).__name__, len(record.rounds)
    if not clients:
        record.rounds.append(Round(name, [], 0, 0, 0.0, {}))
        return phase.shared
    at = torch.tensor(clients)
    shared = algorithm.prepare(context.problem, phase.shared)
    work = Work(number, context.seed, clients, network.download(algorithm, shared, at, number), select(phase.local, at))
    began = time.perf_counter()
    reply = context.executor.execute(work)
    seconds = (time.perf_counter() - began) / len(clients)
    _check_reply(algorithm, context, work, reply, shared)
    weights = data.num_rows[at].to(context.problem.dtype)
    shares = weights / weights.sum().clamp_min(1)
    after, traffic = network.combine(algorithm, shared, reply.messages, at, shares, number)
    after = algorithm.refine(context.problem, after)
    kept, figures = algorithm.settle(after, reply.local)
    _write_back(phase.local, at, kept)
    record.rounds.append(Round(name, clients, traffic.down, traffic.up, seconds, as_figures(reply.info | figures)))
    return after


def _write_back(local: State, clients: Tensor, new: State) -> None:
    """Store the clients' new states; a state that has grown makes room for all clients."""
    for name, value in new.items():
        kept = local[name]
        if value.shape[1:] != kept.shape[1:]:
            room = kept.new_zeros((len(kept), *value.shape[1:]))
            room[tuple(slice(size) for size in kept.shape)] = kept
            kept = local[name] = room
        kept[clients] = value


def _check_reply(algorithm: Algorithm, context: Context, work: Work, reply: Reply, shared: State) -> None:
    for name, value in reply.messages.items():
        finite = torch.isfinite(value).reshape(len(value), -1).all(1)
        if bool(finite.all()):
            continue
        client = work.clients[int((~finite).nonzero()[0])]
        floating = [part for part in work.shared.values() if part.is_floating_point()]
        largest = max((float(part.abs().max()) for part in floating), default=0.0)
        error = DivergenceError(
            f"client {context.record.client_names[client]}, round {work.round}: '{name}' left the finite numbers "
            f"(largest magnitude before: {largest:.3g}); {algorithm.advice(context.problem, shared)}. The last finite "
            "state is kept in this error's `result`",
            client=client,
            round=work.round,
        )
        error.algorithm, error.state = algorithm, shared
        raise error


def _postfix(context: Context, clients: list[int], figures: dict[str, float]) -> str:
    names = context.record.client_names
    who = f"client {names[clients[0]]}" if len(clients) == 1 else f"{len(clients)} clients"
    return ", ".join([who, *(f"{name} {value:.3g}" for name, value in list(figures.items())[:2])])
