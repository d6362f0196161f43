"""The usable replies of a round, and the quorum.

A reply is not used if the client failed, if it is not finite, or if the algorithm objects to it. The client is then
left out of the round, and its site, chain or particles do not change. If an algorithm needs all clients (`needs_all`),
the client is asked again, with the same randomness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT, Bounded
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Failure
from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.errors import QuorumError, SettingError, listed, shown
from pyro_fed.ops.entries import all_finite
from pyro_fed.runtime.executors import Executor, Reply, Work
from pyro_fed.runtime.messages import Spec
from pyro_fed.runtime.run_errors import divergence

if TYPE_CHECKING:
    from pyro_fed.runtime.context import Context

#: Number of attempts for a client in a round that needs all clients.
ATTEMPTS = 10
#: Number of successive requests without a usable reply after which a run without a quorum (`min_clients`) ends.
MAX_FRUITLESS_REQUESTS = 20


@dataclass
class Gathered:
    """The usable part of a round."""

    slots: Tensor  # positions of the clients with usable replies among those that were asked (A,)
    messages: State = field(default_factory=dict)  # (A, ...)
    info: State = field(default_factory=dict)  # the clients' figures (A, ...)
    failures: list[Failure] = field(default_factory=list)
    gone: int = 0  # number of `failures` of clients that did not reply
    unfit: Tensor = field(default_factory=lambda: torch.arange(0))  # positions of replies that are not finite
    stood_for: Tensor = field(default_factory=lambda: torch.arange(0))  # positions of the server's substitutes
    refused: bool = False  # whether all clients replied, but no reply could be used

    @property
    def is_own(self) -> Tensor:
        """Whether each message is the client's own, and not the server's substitute (A,)."""
        return ~torch.isin(self.slots, self.stood_for)


def gather(algorithm: Algorithm, context: Context, work: Work, before: State, kept: State) -> Gathered:
    """The usable replies to a round's work; `kept` is the server's record of all sites (K, ...)."""
    parts: list[Gathered] = []
    asked, failures, unfit = torch.arange(len(work.clients)), [], torch.arange(0)
    for _ in range(ATTEMPTS if algorithm.needs_all else 1):
        part = _usable_replies(algorithm, context, work.part(asked), before, again=bool(parts))
        failures += part.failures
        parts.append(Gathered(asked[part.slots], part.messages, part.info, gone=part.gone, refused=part.refused))
        unfit = torch.cat([unfit, asked[part.unfit]])
        left = ~torch.isin(torch.arange(len(asked)), part.slots)
        if isinstance(
            context.combination, Bounded
        ):  # a repeated request would give the same numbers, so the server substitutes them
            left[part.unfit] = False
        asked = asked[left]
        if not len(asked):
            break
    whole = _join_attempts(parts)
    whole.failures, whole.refused = failures, all(part.refused for part in parts)
    whole.gone = sum(part.gone for part in parts)
    number = len(work.clients)
    need, missing = min(context.min_clients or 0, number), unfit
    if algorithm.needs_all:
        everybody = torch.arange(number)
        need, missing = number, everybody[~torch.isin(everybody, whole.slots)]
    enough = len(whole.slots) >= max(MIN_COHORT, context.min_clients or 0)
    if len(missing) and isinstance(context.combination, Bounded) and enough:
        absent = torch.tensor(work.clients)[missing]
        stands = algorithm.contributions().substitute_messages(before, kept, whole.messages, absent)
        if stands is not None:
            whole, need = _with_stand_ins(whole, missing, stands), 0 if algorithm.needs_all else need
    _check_quorum(algorithm, context, work, whole, before, need)
    return whole


def _with_stand_ins(found: Gathered, missing: Tensor, messages: State) -> Gathered:
    """Add the server's substitutes (B, ...) for the missing clients (B,), with NaN figures."""
    if not messages:
        return found
    slots = torch.cat([found.slots, missing])
    order = slots.argsort()
    unknown = {name: torch.full_like(part[:1], torch.nan) for name, part in found.info.items()}
    info = {name: part.expand(len(missing), *part.shape[1:]) for name, part in unknown.items()}
    both = [(found.messages, messages), (found.info, info)]
    joined = [{name: torch.cat([part, more[name].to(part)])[order] for name, part in own.items()} for own, more in both]
    return Gathered(slots[order], joined[0], joined[1], found.failures, found.gone, stood_for=missing)


def _join_attempts(parts: list[Gathered]) -> Gathered:
    """The replies of several attempts as one, in the order in which the clients were asked."""
    parts = [part for part in parts if len(part.slots)]
    if len(parts) <= 1:
        return parts[0] if parts else Gathered(torch.arange(0))
    slots = torch.cat([part.slots for part in parts])
    order = slots.argsort()
    messages = select(concatenate([part.messages for part in parts]), order)
    info = select(concatenate([part.info for part in parts]), order)
    return Gathered(slots[order], messages, info)


def _usable_replies(algorithm: Algorithm, context: Context, work: Work, before: State, again: bool) -> Gathered:
    """The usable replies of one attempt; a repeated attempt without a finite reply is not a divergence."""
    reply = context.executor.execute(work)
    _check_reply(context.executor, reply, len(work.clients))
    if context.expected is not None and reply.messages:
        _check_messages(context.executor, reply.messages, context.expected.messages(work))
    gone = reply.failures
    reasons = dict(gone)
    replied = torch.ones(len(work.clients), dtype=torch.bool)
    replied[list(reasons)] = False
    slots, unfit = replied.nonzero().flatten(), torch.arange(0)
    if len(slots):
        finite, why = _finite_clients(reply.messages)
        # A bounded run continues until all clients have been asked, since the only client asked may be faulty.
        others_left = _fruitless_requests(context) + len(work.clients) < len(context.record.client_names)
        goes_on = again or context.min_clients == 0 or (isinstance(context.combination, Bounded) and others_left)
        if not bool(finite.any()) and not goes_on:
            largest = max((float(x.abs().max()) for x in work.shared.values() if x.is_floating_point()), default=0.0)
            client = work.clients[int(slots[0])]
            what = (
                f"client {context.record.client_names[client]}, round {work.round}: '{why[0]}' left the finite numbers "
                f"(largest magnitude before: {largest:.3g})"
            )
            cure = algorithm.advice(context.problem, before)
            raise divergence(algorithm, context.record, what, cure, before, work.round, client=client)
        advice = "" if bool(finite.all()) else algorithm.advice(context.problem, before)
        reasons |= {int(slots[i]): f"'{name}' left the finite numbers ({advice})" for i, name in why.items()}
        unfit = slots[~finite]
        slots, reply = slots[finite], _rows(reply, finite)
    if len(slots) and not context.hides_clients and not isinstance(context.combination, Bounded):
        honest = torch.ones(len(slots), dtype=torch.bool)
        for reason, holds in algorithm.objections(work.part(slots).shared, reply.messages).items():
            reasons = {int(slot): reason for slot in slots[holds]} | reasons
            honest &= ~holds
        slots, reply = slots[honest], _rows(reply, honest)
    failures = [(work.clients[slot], reasons[slot]) for slot in sorted(reasons)]
    refused = not gone and not len(slots)
    return Gathered(slots, reply.messages, reply.info, failures, len(gone), unfit, refused=refused)


def _check_reply(executor: Executor, reply: Any, asked: int) -> None:
    """Refuse an invalid reply of a user's executor."""
    what = f"executor {type(executor).__name__}: execute"
    if not isinstance(reply, Reply):
        raise SettingError(f"{what} must return a pf.executors.Reply, received {shown(reply)}")
    odd = [slot for slot in reply.failures if slot not in range(asked)]
    if odd:
        raise SettingError(f"{what} returned a failure of the client at place {odd[0]!r} of {asked} that were asked")
    replied = asked - len(reply.failures)
    if replied and not reply.messages:
        raise SettingError(
            f"{what} returned no messages, though {replied} of {asked} clients have replied: return their messages, or "
            "name these clients in `failures`"
        )
    for name, value in [*reply.messages.items(), *reply.info.items()] if replied else []:
        if not isinstance(value, Tensor) or value.dim() < 1 or len(value) != replied:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(
                f"{what} returned {name!r} as {kind}, expected a tensor with one entry for each of the {replied} "
                "clients that have not failed, in the order in which they were asked"
            )


def _check_messages(executor: Executor, messages: State, expected: Spec) -> None:
    """Refuse messages (A, ...) of a user's executor that do not have the expected shapes and dtypes."""
    for name, (shape, dtype) in expected.items():
        value = messages.get(name)
        if value is None:
            found = f"the messages {listed(list(messages))}, without {name!r}"
        elif (tuple(value.shape[1:]), value.dtype) != (shape, dtype):
            found = f"{name!r} as {value.dtype} of shape {tuple(value.shape[1:])} a client"
        else:
            continue
        raise SettingError(
            f"executor {type(executor).__name__}: execute returned {found}, expected {dtype} of shape {shape} a "
            "client, as the algorithm's local_step makes it: return messages as they are made"
        )


def _rows(reply: Reply, keep: Tensor) -> Reply:
    if bool(keep.all()):
        return reply
    return Reply(select(reply.messages, keep), select(reply.info, keep))


def _finite_clients(messages: State) -> tuple[Tensor, dict[int, str]]:
    """Whether each client's message is finite (A,), and the name of the first tensor that is not, by position."""
    why: dict[int, str] = {}
    finite = torch.ones(len(next(iter(messages.values()))), dtype=torch.bool)
    for name, value in messages.items():
        good = each_finite(value).to(finite.device)
        why = dict.fromkeys((~good).nonzero().flatten().tolist(), name) | why
        finite &= good
    return finite, why


def each_finite(values: Tensor) -> Tensor:
    """Whether all numbers of each client (C, ...) are finite (C,), computed client by client to save memory."""
    if all_finite(values):
        return torch.ones(len(values), dtype=torch.bool)
    return torch.stack([torch.isfinite(own).all() for own in values])


def _check_quorum(
    algorithm: Algorithm, context: Context, work: Work, found: Gathered, before: State, need: int
) -> None:
    replied, asked = len(found.slots), len(work.clients)
    if replied == 0 and _fruitless_requests(context) + asked >= MAX_FRUITLESS_REQUESTS:
        need = max(need, 1)
    if replied >= need:
        return
    if found.refused and context.min_clients != 0:  # with min_clients=0 rounds without replies are skipped
        client, reason = found.failures[-1]
        what = (
            f"{type(algorithm).__name__}, round {work.round}: no reply of {asked} could be used, that of client "
            f"{context.record.client_names[client]} since {reason}"
        )
        cure = algorithm.advice(context.problem, before)
        raise divergence(algorithm, context.record, what, cure, before, work.round, client=client)
    where = "this error's `state`" if context.checkpoint is None else str(context.checkpoint.folder)
    kept = f"state of round {work.round - 1} is in {where}" if work.round else "no round was completed"
    last = f"; last failure: client {context.record.client_names[found.failures[-1][0]]} {found.failures[-1][1]}"
    cure = (
        f"; {type(algorithm).__name__} needs every client: leave out those that are gone" if algorithm.needs_all else ""
    )
    text = f"{replied} of {asked} replied, need {need}; {kept}{last}{cure}"
    raise QuorumError(text, round=work.round, algorithm=algorithm, state=before)


def _fruitless_requests(context: Context) -> int:
    """The number of failures since the last round with a usable reply."""
    count = 0
    for past in reversed(context.record.rounds):
        if past.clients or not past.failures:
            break
        count += len(past.failures)
    return count
