"""One round: the clients' work, what of it is used, and what everybody keeps."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import apart
from pyro_fed.algorithm.capabilities import Bounding, Chains, Moving, Sent, ServerWork, SiteKeeping
from pyro_fed.algorithm.combination import Bounded, Middle, Shortened
from pyro_fed.algorithm.ledger import entered
from pyro_fed.algorithm.record import Round, as_figures
from pyro_fed.algorithm.states import State, select
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.runtime.context import Context, Phase
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.network import Network, Traffic
from pyro_fed.runtime.replies import gather, hidden, refuse_divergence

#: Messages of fewer clients have no cohort that one of them could stand apart from.
FEWEST_COMPARED = 5


def one_round(phase: Phase, context: Context, network: Network, data: ClientData, clients: list[int]) -> State:
    """The server's state after a round of some clients, and what is kept of the round.

    Raises:
        BudgetEnded: the round would cost more than is left.
    """
    algorithm, record = phase.algorithm, context.record
    name, number = type(algorithm).__name__, len(record.rounds)
    if not clients:
        record.rounds.append(Round(name, [], 0, 0, 0.0, {}))
        return phase.shared
    asked = torch.tensor(clients)
    server = algorithm if isinstance(algorithm, ServerWork) else ServerWork()
    shared = server.prepare(context.problem, phase.shared)
    received = network.download(algorithm, shared, asked, number)
    context.budget.check(record, name, network.announced(len(clients)))
    began = time.perf_counter()
    found = gather(algorithm, context, Work(number, context.seed, clients, received), shared, phase.ledger)
    seconds = (time.perf_counter() - began) / len(clients)
    at = asked[found.slots]
    if not len(at):
        record.rounds.append(Round(name, [], 0, 0, 0.0, {}, failures=found.failures))
        return phase.shared
    weights = data.num_rows[at].to(context.problem.dtype)
    if isinstance(context.combination, Bounded):  # what a client claims of its rows is worth no more than the cohort's
        weights = weights.clamp_max(context.combination.precision * max(1.0, float(weights.median())))
    shares = weights / weights.sum().clamp_min(1)
    messages = found.messages
    if isinstance(algorithm, Chains) and len(at) < len(asked):
        messages = algorithm.stand_in(shared, messages, found.slots, asked)
    if _comparable(phase, context, len(at)):
        found.info["apart"] = apart(_numbers(messages))
    corrections: State = {}
    whose = asked if isinstance(algorithm, Chains) else at  # chains that nobody moved are there too
    sent = Sent(messages, whose, number, context.seed, data.num_rows, context.problem, context.graph)
    if isinstance(context.combination, Bounded):
        assert isinstance(algorithm, Bounding)  # `check_combination` has refused others
        held = algorithm.hold(context.combination, shared, phase.ledger, sent)
        shared, messages, corrections = held.shared, held.messages, held.told
        found.info["beyond"] = held.cut[found.slots] if len(held.cut) > len(at) else held.cut
        if held.widened is not None:
            found.info["widened"] = held.widened
    elif isinstance(context.combination, Middle):
        if isinstance(algorithm, SiteKeeping) and isinstance(context.combination, Shortened):
            messages = algorithm.alone(messages)
            corrections = context.combination.corrections(messages) if algorithm.corrected else {}
        messages = context.combination(messages)
    if (how_far := moved(phase, context, shared, sent._replace(messages=messages))) is not None:
        found.info["moved"] = how_far[found.slots] if len(how_far) > len(at) else how_far
    after, traffic = network.combine(algorithm, shared, messages, at, shares, number)
    if (carried := context.executor.travelled(at.tolist())) is not None:
        traffic = Traffic(*carried)
    after = server.refine(context.problem, after)
    refuse_divergence(algorithm, context, phase.shared, after, number)
    told, figures = algorithm.feedback(after, at) if isinstance(algorithm, SiteKeeping) else ({}, {})
    phase.ledger = entered(algorithm, phase.ledger, at, messages, told | corrections)
    told |= corrections
    known = found.info | figures
    if len(found.stood_for):  # clients for whom the server has spoken did not work, and have nothing to settle
        told, known = select(told, found.own), select(known, found.own)
        at, traffic = at[found.own], traffic.of(found.own.numpy())
    context.executor.settle(found.slots[found.own], told)
    info = {} if hidden(context) else as_figures(known)
    record.rounds.append(Round(name, at.tolist(), traffic.down, traffic.up, seconds, info, failures=found.failures))
    return after


def moved(phase: Phase, context: Context, shared: State, sent: Sent) -> Tensor | None:
    """How far each message moves the answer, (C,); None where it is not known, not the last phase, or nobody's to see.

    Args:
        phase: the run's.
        context: of the run.
        shared: the server's state before the messages.
        sent: the messages, as they are taken.
    """
    algorithm = phase.algorithm
    if not (phase.last and isinstance(algorithm, Moving)) or hidden(context) or context.executor.sums_alone:
        return None
    return algorithm.moved(shared, phase.ledger, sent)


def moved_rounds(phase: Phase, context: Context, before: list[State], sent: list[Sent]) -> Tensor | None:
    """The same of rounds that have been had at once, (R, C).

    Args:
        phase: the run's.
        context: of the run.
        before: the server's state before each round.
        sent: the messages of each.
    """
    algorithm = phase.algorithm
    if not (phase.last and isinstance(algorithm, Moving)) or hidden(context):
        return None
    return algorithm.moved_rounds(before, phase.ledger, sent)


def _comparable(phase: Phase, context: Context, clients: int) -> bool:
    """Whether a round's messages are alike in kind, and those of sites of which nobody keeps account."""
    algorithm = phase.algorithm
    alike = isinstance(algorithm, Bounding) and algorithm.alike and algorithm.additive and not phase.ledger
    alike = alike and not context.executor.sums_alone
    return phase.last and alike and context.combination is None and clients >= FEWEST_COMPARED


def _numbers(messages: State) -> torch.Tensor:
    """All of the messages' numbers that are no flags, (C, P)."""
    return torch.cat([value.reshape(len(value), -1) for value in messages.values() if value.is_floating_point()], 1)
