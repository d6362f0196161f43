"""Which of a round's replies are used: none that failed, is not finite, or cannot be honest; and the quorum.

A client that fails is left out of the round: its site, its chain or its particles stay as they were. Where the
algorithm cannot do without it (`needs_all`), it is asked again, with the same randomness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Advice, Bounding
from pyro_fed.algorithm.combination import FEWEST, Bounded
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Failure
from pyro_fed.algorithm.states import State, select
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DivergenceError, QuorumError
from pyro_fed.runtime.executors import Reply, Work

if TYPE_CHECKING:
    from pyro_fed.runtime.context import Context

#: Where the state before is; the first rounds of some algorithms leave none that could be drawn from.
KEPT = "The last finite state is kept in this error's `state`, and its draws in `result` where it has any"
#: The cure of a server's state that left the finite numbers, of an algorithm that knows no other.
OVERFLOW = (
    "the step was too long, or a density overflowed. Take a smaller step, give parameters of very different scales a "
    "common one, or use dtype=torch.float64"
)
#: Numbers of a round's messages that are looked at together.
FINITE_AT_ONCE = 5_000_000
#: How often a client is asked in a round that cannot do without it.
ATTEMPTS = 10
#: So many requests in a row without a usable reply end a run that asks for no quorum.
PATIENCE = 20


@dataclass
class Gathered:
    """The usable part of a round.

    Attributes:
        slots: places of the clients that replied, among those that were asked, (A,).
        messages: theirs, (A, ...), likewise their figures.
        failures: clients and reasons.
        gone: how many of these had no reply; those of others could not be used.
        unfit: places of the clients whose reply is not finite, (B,).
        stood_for: places of the clients in whose place the server has put a message, (B,).
        refused: whether all that were asked have replied, and no reply could be used.
    """

    slots: Tensor
    messages: State = field(default_factory=dict)
    info: State = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    gone: int = 0
    unfit: Tensor = field(default_factory=lambda: torch.arange(0))
    stood_for: Tensor = field(default_factory=lambda: torch.arange(0))
    refused: bool = False

    @property
    def own(self) -> Tensor:
        """Whether a message is the client's own, not one that stands for it, (A,)."""
        return ~torch.isin(self.slots, self.stood_for)


def gather(algorithm: Algorithm, context: Context, work: Work, before: State, kept: State) -> Gathered:
    """Have a round's work done.

    Args:
        algorithm: what runs.
        context: of the run.
        work: the round's.
        before: the server's state, to be kept should the run stop here.
        kept: what the server knows of all clients' sites, (K, ...).

    Raises:
        DivergenceError: no reply is finite, and the run has not been told to expect that (`min_clients=0`).
        QuorumError: too few usable replies.
    """
    parts: list[Gathered] = []
    asked, failures, unfit = torch.arange(len(work.clients)), [], torch.arange(0)
    for _ in range(ATTEMPTS if algorithm.needs_all else 1):
        part = _usable(algorithm, context, work.part(asked), before, again=bool(parts))
        failures += part.failures
        parts.append(Gathered(asked[part.slots], part.messages, part.info, gone=part.gone, refused=part.refused))
        unfit = torch.cat([unfit, asked[part.unfit]])
        left = ~torch.isin(torch.arange(len(asked)), part.slots)
        if isinstance(context.combination, Bounded):  # others' word stands there: the same randomness, the same numbers
            left[part.unfit] = False
        asked = asked[left]
        if not len(asked):
            break
    whole = _joined(parts)
    whole.failures, whole.refused = failures, all(part.refused for part in parts)
    whole.gone = sum(part.gone for part in parts)
    need = _needed(algorithm, context, len(work.clients))
    missing = unfit  # others are gone
    if algorithm.needs_all:
        everybody = torch.arange(len(work.clients))
        missing = everybody[~torch.isin(everybody, whole.slots)]
    if len(missing) and isinstance(algorithm, Bounding) and _outvoted(context, whole):
        stands = algorithm.silent(before, kept, whole.messages, torch.tensor(work.clients)[missing])
        if stands is not None:
            whole, need = _with(whole, missing, stands), 0 if algorithm.needs_all else need
    _check_quorum(algorithm, context, work, whole, before, need)
    return whole


def _needed(algorithm: Algorithm, context: Context, asked: int) -> int:
    """How many of so many clients have to reply."""
    return asked if algorithm.needs_all else min(context.min_clients or 0, asked)


def _excused(context: Context, asked: int) -> bool:
    """Whether a bounded run goes on after a round without a finite reply: a liar may be asked alone, in its turn."""
    bounded = isinstance(context.combination, Bounded)
    return bounded and _requests_in_vain(context) + asked < len(context.record.client_names)


def _outvoted(context: Context, found: Gathered) -> bool:
    """Whether a bounded round may go on without those that are missing."""
    return isinstance(context.combination, Bounded) and len(found.slots) >= max(FEWEST, context.min_clients or 0)


def _with(found: Gathered, missing: Tensor, messages: State) -> Gathered:
    """The same with messages for those that are missing, where there are any; their figures are not known."""
    if not messages:
        return found
    slots = torch.cat([found.slots, missing])
    order = slots.argsort()
    unknown = {name: torch.full_like(part[:1], torch.nan) for name, part in found.info.items()}
    info = {name: part.expand(len(missing), *part.shape[1:]) for name, part in unknown.items()}
    both = [(found.messages, messages), (found.info, info)]
    joined = [{name: torch.cat([part, more[name].to(part)])[order] for name, part in own.items()} for own, more in both]
    return Gathered(slots[order], joined[0], joined[1], found.failures, found.gone, stood_for=missing)


def _joined(parts: list[Gathered]) -> Gathered:
    """All parts, in the order in which the clients were asked."""
    parts = [part for part in parts if len(part.slots)]
    if len(parts) <= 1:
        return parts[0] if parts else Gathered(torch.arange(0))
    slots = torch.cat([part.slots for part in parts])
    order = slots.argsort()
    messages, info = (
        {name: torch.cat([getattr(part, kind)[name] for part in parts])[order] for name in getattr(parts[0], kind)}
        for kind in ("messages", "info")
    )
    return Gathered(slots[order], messages, info)


def _usable(algorithm: Algorithm, context: Context, work: Work, before: State, again: bool) -> Gathered:
    """The usable replies of one attempt; where it is not the first, only of those that had none."""
    reply = context.executor.execute(work)
    gone = reply.failures
    reasons = dict(gone)
    replied = torch.ones(len(work.clients), dtype=torch.bool)
    replied[list(reasons)] = False
    slots, unfit = replied.nonzero().flatten(), torch.arange(0)
    if len(slots):
        finite, why = _finite(reply.messages)
        if not (bool(finite.any()) or again or context.min_clients == 0 or _excused(context, len(work.clients))):
            raise _diverged(algorithm, context, work, int(slots[0]), why[0], before)
        advice = "" if bool(finite.all()) else _advice(algorithm, context.problem, before)
        reasons |= {int(slots[i]): f"'{name}' left the finite numbers ({advice})" for i, name in why.items()}
        unfit = slots[~finite]
        slots, reply = slots[finite], _rows(reply, finite)
    if len(slots) and not hidden(context) and not isinstance(context.combination, Bounded):
        honest = torch.ones(len(slots), dtype=torch.bool)
        for reason, holds in algorithm.objections(work.part(slots).shared, reply.messages).items():
            reasons = {int(slot): reason for slot in slots[holds]} | reasons
            honest &= ~holds
        slots, reply = slots[honest], _rows(reply, honest)
    failures = [(work.clients[slot], reasons[slot]) for slot in sorted(reasons)]
    refused = not gone and not len(slots)
    return Gathered(slots, reply.messages, reply.info, failures, len(gone), unfit, refused=refused)


def hidden(context: Context) -> bool:
    """Whether messages must not be looked at one by one, nor figures of the clients be recorded."""
    return context.combination is not None and context.combination.private


def _rows(reply: Reply, keep: Tensor) -> Reply:
    if bool(keep.all()):
        return reply
    return Reply(select(reply.messages, keep), select(reply.info, keep))


def _finite(messages: State) -> tuple[Tensor, dict[int, str]]:
    """Whether each client's message is finite, and the first tensor that is not."""
    why: dict[int, str] = {}
    finite = torch.ones(len(next(iter(messages.values()))), dtype=torch.bool)
    for name, value in messages.items():
        good = all_finite(value).to(finite.device)
        why = dict.fromkeys((~good).nonzero().flatten().tolist(), name) | why
        finite &= good
    return finite, why


def all_finite(values: Tensor) -> Tensor:
    """Whether each of some clients' numbers (C, ...) are finite, (C,); client by client where they are many."""
    if values.numel() <= FINITE_AT_ONCE:
        return torch.isfinite(values).reshape(len(values), -1).all(1)
    return torch.stack([torch.isfinite(own).all() for own in values])


def _advice(algorithm: Algorithm, problem: Problem, before: State) -> str:
    """The cure for an update that left the finite numbers."""
    return algorithm.advice(problem, before) if isinstance(algorithm, Advice) else "reduce the step size"


def _said(sentence: str) -> str:
    return f"{sentence}. " if sentence else ""


def _diverged(
    algorithm: Algorithm, context: Context, work: Work, slot: int, name: str, before: State
) -> DivergenceError:
    client = work.clients[slot]
    floating = [part for part in work.shared.values() if part.is_floating_point()]
    largest = max((float(part.abs().max()) for part in floating), default=0.0)
    what = (
        f"client {context.record.client_names[client]}, round {work.round}: '{name}' left the finite numbers "
        f"(largest magnitude before: {largest:.3g})"
    )
    return _error(algorithm, context, work, client, what, before)


def _refused(algorithm: Algorithm, context: Context, work: Work, found: Gathered, before: State) -> DivergenceError:
    """The error of a round whose clients have all replied what no honest one can, as in a run that diverges."""
    client, reason = found.failures[-1]
    what = (
        f"{type(algorithm).__name__}, round {work.round}: no reply of {len(work.clients)} could be used, that of "
        f"client {context.record.client_names[client]} since {reason}"
    )
    return _error(algorithm, context, work, client, what, before)


def _error(
    algorithm: Algorithm, context: Context, work: Work, client: int, what: str, before: State
) -> DivergenceError:
    """The error of a run that diverges at a client, with the cure, and the state before."""
    cure = context.record.moved_first() or _advice(algorithm, context.problem, before)
    said = f"{what}; {cure}. {_said(context.record.unlike())}{KEPT}"
    error = DivergenceError(said, client=client, round=work.round)
    error.algorithm, error.state = algorithm, before
    return error


def refuse_divergence(algorithm: Algorithm, context: Context, before: State, after: State, round: int) -> None:
    """Refuse a server's state with an entry that was finite and is so no more.

    Entries that begin as infinities, and those that the algorithm names as `may_be_infinite`, hold what is not known
    yet.

    Args:
        algorithm: what runs.
        context: of the run so far.
        before: the server's state before the round, which the error keeps.
        after: its state now.
        round: the round's number.

    Raises:
        DivergenceError: names the entry.
    """
    for name, value in after.items():
        if value is before.get(name):  # nothing new, or a buffer that has grown by messages, which have been looked at
            continue
        if name in algorithm.may_be_infinite or not value.is_floating_point() or bool(torch.isfinite(value).all()):
            continue
        if name in before and not bool(torch.isfinite(before[name]).all()):
            continue
        record, advised = context.record, isinstance(algorithm, Advice)
        cure = record.moved_first() or (_advice(algorithm, context.problem, before) if advised else OVERFLOW)
        error = DivergenceError(
            f"{type(algorithm).__name__}, round {round}: the server's '{name}' left the finite numbers, though every "
            f"client's reply was finite: {cure}. {_said(record.unlike())}{KEPT}",
            round=round,
        )
        error.algorithm, error.state = algorithm, before
        raise error


def _check_quorum(
    algorithm: Algorithm, context: Context, work: Work, found: Gathered, before: State, need: int
) -> None:
    replied, asked = len(found.slots), len(work.clients)
    if replied == 0 and _requests_in_vain(context) + asked >= PATIENCE:
        need = max(need, 1)
    if replied >= need:
        return
    if found.refused and context.min_clients != 0:  # 0 expects that, of clients that come and go
        raise _refused(algorithm, context, work, found, before)
    where = "this error's `state`" if context.checkpoint is None else str(context.checkpoint.folder)
    kept = f"state of round {work.round - 1} is in {where}" if work.round else "no round was completed"
    last = f"; last failure: client {context.record.client_names[found.failures[-1][0]]} {found.failures[-1][1]}"
    cure = (
        f"; {type(algorithm).__name__} needs every client: leave out those that are gone" if algorithm.needs_all else ""
    )
    error = QuorumError(
        f"{replied} of {asked} replied, need {need}; {kept}{last}{cure}",
        round=work.round,
    )
    error.algorithm, error.state = algorithm, before
    raise error


def _requests_in_vain(context: Context) -> int:
    """Failures since the last round with a usable reply."""
    count = 0
    for past in reversed(context.record.rounds):
        if past.clients or not past.failures:
            break
        count += len(past.failures)
    return count
