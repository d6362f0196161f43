"""One round, or several at once if the server makes no decision between them: work, messages and the new state."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import distances_from_cohort
from pyro_fed.algorithm.capabilities import Chains, SiteKeeping
from pyro_fed.algorithm.combination import Bounded, Combination, Middle, Shortened
from pyro_fed.algorithm.contract import Algorithm, overrides
from pyro_fed.algorithm.contributions import SentMessages
from pyro_fed.algorithm.record import Round, as_figures, figure_array
from pyro_fed.algorithm.states import State, select
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.ops.entries import all_finite
from pyro_fed.ops.memory import count_in_memory
from pyro_fed.runtime.context import Context, Phase
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.local import Vectorised, owner
from pyro_fed.runtime.messages import encoded_size, spec_of_one
from pyro_fed.runtime.network import Network, Server, Traffic
from pyro_fed.runtime.replies import gather
from pyro_fed.runtime.run_errors import refuse_divergence

#: Smallest number of clients whose messages are compared to find outlying ones.
MIN_COMPARED_CLIENTS = 5

#: Largest number of rounds at once; Ctrl-C is handled between them.
MAX_FUSED_ROUNDS = 100
#: A method for one round, and its equivalent for several rounds. A class that overrides only the first runs its rounds
#: one at a time.
METHODS_OF_SEVERAL_ROUNDS = {"combine": "combine_rounds", "download": "onward"}


def one_round(phase: Phase, context: Context, network: Network, data: ClientData, clients: list[int]) -> State:
    """The server's state after a round of some clients; the record and the phase's ledger are updated.

    Raises:
        BudgetEnded: the round would exceed the budget.
    """
    algorithm, record = phase.algorithm, context.record
    name, number = type(algorithm).__name__, len(record.rounds)
    if not clients:
        record.rounds.append(Round(name, [], 0, 0, 0.0, {}))
        return phase.shared
    asked_clients = torch.tensor(clients)
    shared = algorithm.prepare(context.problem, phase.shared)
    received = network.download(algorithm, shared, asked_clients, number)
    context.budget.check(record, name, network.announced(len(clients)))
    start_time = time.perf_counter()
    gathered = gather(algorithm, context, Work(number, context.seed, clients, received), shared, phase.ledger)
    seconds = (time.perf_counter() - start_time) / len(clients)
    at = asked_clients[gathered.slots]
    if not len(at):
        record.rounds.append(Round(name, [], 0, 0, 0.0, {}, failures=gathered.failures, gone=gathered.gone))
        return phase.shared
    shares = _shares(data.num_rows[at].to(context.problem.dtype), context.combination)
    messages = gathered.messages
    if isinstance(algorithm, Chains) and len(at) < len(asked_clients):
        messages = algorithm.stand_in(shared, messages, gathered.slots, asked_clients)
    if _comparable(phase, context, len(at)):
        gathered.info["apart"] = distances_from_cohort(_numbers(messages))
    whose = asked_clients if isinstance(algorithm, Chains) else at  # chains whose clients failed did not move
    sent = SentMessages(messages, whose, number, context.seed, data.num_rows, context.problem, context.graph)
    taken = _combined_messages(algorithm, context.combination, shared, phase.ledger, sent)
    shared, messages, figures = taken.shared, taken.messages, taken.figures
    if _measures_shifts(phase, context):
        shifts = algorithm.contributions().client_shift_sds(shared, phase.ledger, sent._replace(messages=messages))
        figures |= {} if shifts is None else {"moved": shifts}
    for key, value in figures.items():
        gathered.info[key] = value[gathered.slots] if len(value) > len(at) else value
    new_state, traffic = network.combine(algorithm, shared, messages, at, shares, number)
    if (carried := context.executor.travelled(at.tolist())) is not None:
        traffic = Traffic(*carried)
    new_state = algorithm.refine(context.problem, new_state)
    refuse_divergence(algorithm, context, phase.shared, new_state, number)
    feedback, figures = algorithm.feedback(new_state, at) if isinstance(algorithm, SiteKeeping) else ({}, {})
    feedback |= taken.corrections
    phase.ledger = algorithm.contributions().ledger_after(phase.ledger, at, messages, feedback)
    round_figures = gathered.info | figures
    if len(gathered.stood_for):  # clients with substitute messages did not work, and settle nothing
        feedback, round_figures = select(feedback, gathered.is_own), select(round_figures, gathered.is_own)
        at, traffic = at[gathered.is_own], traffic.of(gathered.is_own.numpy())
    context.executor.settle(gathered.slots[gathered.is_own], feedback)
    info = {} if context.hides_clients else as_figures(round_figures)
    record.rounds.append(
        Round(
            *(name, at.tolist(), traffic.down, traffic.up, seconds, info),
            failures=gathered.failures,
            gone=gathered.gone,
            reach=taken.reach,
        )
    )
    return new_state


class _CombinedMessages(NamedTuple):
    """A round's messages after the run's combination has been applied."""

    shared: State
    messages: State
    corrections: State
    figures: State
    reach: float = 0.0


def _combined_messages(
    algorithm: Algorithm, combination: Combination | None, shared: State, ledger: State, sent: SentMessages
) -> _CombinedMessages:
    """The messages to use: limited relative to the others, replaced by one vector, or as they were sent."""
    if isinstance(combination, Bounded):
        limited = algorithm.contributions().bounded_messages(
            combination, shared, ledger, sent
        )  # see `check_combination`
        figures = {"beyond": limited.cut} | ({} if limited.widened is None else {"widened": limited.widened})
        return _CombinedMessages(limited.shared, limited.messages, limited.corrections, figures)
    messages, corrections, reach = sent.messages, State(), 0.0
    if isinstance(combination, Middle):
        if isinstance(algorithm, SiteKeeping) and isinstance(combination, Shortened):
            messages = algorithm.clippable_part(messages)
            corrections = combination.corrections(messages) if algorithm.corrected else {}
        messages = combination(messages)
        reach = combination.reach(messages) if isinstance(combination, Shortened) else 0.0
    return _CombinedMessages(shared, messages, corrections, {}, reach)


def _shares(rows: Tensor, combination: Combination | None) -> Tensor:
    """Each client's share of a round's rows (A,)."""
    if isinstance(combination, Bounded):  # a client cannot gain weight by claiming many rows
        rows = rows.clamp_max(combination.precision * max(1.0, float(rows.median())))
    return rows / rows.sum().clamp_min(1)


def _measures_shifts(phase: Phase, context: Context) -> bool:
    """Whether the record contains the shift of the result by each client's message."""
    return phase.last and not context.hides_clients and not context.executor.sums_alone


def _comparable(phase: Phase, context: Context, clients: int) -> bool:
    """Whether the messages of a round's clients can be compared to find outlying ones."""
    if not phase.last or clients < MIN_COMPARED_CLIENTS or phase.ledger or not phase.algorithm.additive:
        return False
    if context.combination is not None or context.executor.sums_alone:
        return False
    contributions = phase.algorithm.contributions()
    return contributions.messages_alike and contributions.bounding_obstacle() is not None


def _numbers(messages: State) -> torch.Tensor:
    """All floating-point numbers of the messages (C, P)."""
    return torch.cat([value.reshape(len(value), -1) for value in messages.values() if value.is_floating_point()], 1)


def rounds_at_once(phase: Phase, context: Context, network: Network, left: int) -> int:
    """The number of the `left` remaining rounds that may be run at once; 1 if they must be run one by one."""
    algorithm = phase.algorithm
    if not isinstance(algorithm, Chains) or type(context.executor) is not Vectorised:
        return 1
    if not all(
        issubclass(owner(algorithm, several), owner(algorithm, one))
        for one, several in METHODS_OF_SEVERAL_ROUNDS.items()
    ):
        return 1
    between = (phase.given, context.checkpoint, context.combination, context.evaluation)
    budget = context.budget
    if any(part is not None for part in (*between, budget.max_rounds, budget.max_bytes)) or phase.ledger:
        return 1
    if type(network) is not Server or algorithm.pooled or isinstance(algorithm, SiteKeeping):
        return 1
    if overrides(algorithm, "prepare", "refine"):
        return 1
    numbers = count_in_memory(10 * context.problem.dim)
    in_time = int(min(MAX_FUSED_ROUNDS, budget.at_once(context.record)))
    return max(1, min(left, in_time, algorithm.rounds_ahead(phase.shared), numbers))


def run_fused_rounds(
    phase: Phase, context: Context, data: ClientData, clients: list[list[int]]
) -> list[tuple[Round, State]] | None:
    """Several rounds, each with the state after it; None, without any change, if they must be run one by one.

    The numbers equal those of the round loop, since clients, noise and states are functions of the round. The loop's
    checks between two rounds are made once, after all rounds. If a reply is not finite or meets an objection, no round
    takes effect.
    """
    algorithm, executor = cast_checked(phase.algorithm, Chains), cast_checked(context.executor, Vectorised)
    began = time.perf_counter()
    numbers = torch.from_numpy(np.array(clients))
    received = phase.algorithm.download(phase.shared, numbers[0])
    first = Work(len(context.record.rounds), context.seed, clients[0], received)
    try:
        made, noise = executor.rounds(first, numbers, algorithm.onward, phase.algorithm.contributions().replayed_noise)
    except KeyboardInterrupt:
        executor.undo()
        raise
    messages = made.messages
    seconds = (time.perf_counter() - began) / sum(map(len, clients))
    if not _all_plausible(phase, made.received, messages):
        executor.undo()
        return None
    states = algorithm.combine_rounds(phase.shared, messages)
    refuse_divergence(phase.algorithm, context, phase.shared, states[-1], first.round + len(clients) - 1)
    info = {name: figure_array(value) for name, value in made.figures.items()}
    known = (first.round, context.seed, data.num_rows, context.problem, context.graph)
    sent = SentMessages(messages, numbers, *known, noise)
    if _measures_shifts(phase, context):
        before = [phase.shared, *states[:-1]]
        shifts = phase.algorithm.contributions().client_shift_sds_of_rounds(before, phase.ledger, sent)
        info |= {} if shifts is None else {"moved": figure_array(shifts)}
    one = {name: value[0] for name, value in messages.items()}
    down, up = (encoded_size(spec_of_one(state)) for state in (received, one))
    name = type(algorithm).__name__
    rounds = [
        Round(name, chosen, down, up, seconds, {key: value[i] for key, value in info.items()})
        for i, chosen in enumerate(clients)
    ]
    return list(zip(rounds, states, strict=True))


def _all_plausible(phase: Phase, received: State, messages: State) -> bool:
    """Whether all replies (R, C, ...) are finite, and the algorithm has no objection to any of them."""
    if not all(all_finite(value) for value in messages.values()):
        return False
    flat = [{name: value.flatten(0, 1) for name, value in state.items()} for state in (received, messages)]
    return not any(bool(holds.any()) for holds in phase.algorithm.objections(*flat).values())
