"""Errors that end a run: numbers that are not finite, a state that grows without bound, Ctrl-C and the time limit.

Each error keeps the last good state. Steps that are too long multiply a position by about the same factor in every
round. If the factor is near one, the position stays finite for thousands of rounds: with 1.07 per round it is 10^147
after 5,000. A run is therefore ended (`Growth`) if a position has grown by a constant factor over the last half of the
rounds, and by so much that its first value is lost in double precision. A position that jumps once, because the data
have a large unit, does not grow further. Precisions, dampings and step sizes may legitimately grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from pyro_fed.algorithm.contract import Algorithm, overrides
from pyro_fed.algorithm.record import Record, Round, as_figures
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.conventions.resources import is_time
from pyro_fed.errors import DivergenceError, InterruptedRun, PartialWork, TimeLimitError
from pyro_fed.ops.entries import all_finite
from pyro_fed.runtime.context import Context, Phase

#: Entries of a server's state that are positions in the model's coordinates.
POSITIONS = ("point", "particles", "position")
#: From round `FIRST_LOOK` on, the state is inspected `LOOKS_A_DOUBLING` times while the number of rounds doubles. The
#: last `LOOKS_A_DOUBLING` intervals, which are the last half of the rounds, must show the growth.
LOOKS_A_DOUBLING = 4
FIRST_LOOK = 2 * LOOKS_A_DOUBLING
#: Smallest growth between two inspections of a state that grows without bound: faster than the sixth power of the
#: rounds.
GROWTH_FACTOR = 3.0
#: Smallest total growth, after which the first value, or one, is lost in double precision. At the end of the rounds,
#: after which the state cannot recover, half of the digits suffice.
GROWN = 1 / torch.finfo(torch.float64).eps
GROWN_AT_END = GROWN**0.5

#: Where the last good state is. Some algorithms have no draws after their first rounds.
KEPT = "The last finite state is kept in this error's `state`, and its draws are in `result` if it has any"
#: Default cures for a state that grows, and for one that is not finite, if the algorithm has no `advice`.
SHORTER_STEPS = "the step was too long. Take a smaller step, or give parameters of very different scales a common one"
OVERFLOW = (
    "the step was too long, or a density overflowed. Take a smaller step, give parameters of very different scales a "
    "common one, or use dtype=torch.float64"
)


def divergence(
    algorithm: Algorithm,
    record: Record,
    what: str,
    cure: str,
    state: State,
    round: int,
    *,
    client: int | None = None,
    kept: str = KEPT,
) -> DivergenceError:
    """The error for a run that diverges, with the likely cause from the record, or else the cure, and the state."""
    apart = record.unlike()
    text = f"{what}: {record.moved_first() or cure}. {apart + '. ' if apart else ''}{kept}"
    return DivergenceError(text, client=client, round=round, algorithm=algorithm, state=state)


def refuse_divergence(algorithm: Algorithm, context: Context, before: State, after: State, round: int) -> None:
    """Refuse a server's state with an entry that was finite before the round and is not finite now.

    Entries that were infinite before, and those in the algorithm's `may_be_infinite`, are unknown values.
    """
    for name, value in after.items():
        if value is before.get(name):  # unchanged, or a buffer to which checked messages were added
            continue
        if name in algorithm.may_be_infinite or not value.is_floating_point() or all_finite(value):
            continue
        if name in before and not all_finite(before[name]):
            continue
        cure = algorithm.advice(context.problem, before) if overrides(algorithm, "advice") else OVERFLOW
        what = (
            f"{type(algorithm).__name__}, round {round}: the server's '{name}' left the finite numbers, though every "
            "client's reply was finite"
        )
        raise divergence(algorithm, context.record, what, cure, before, round)


@dataclass
class Growth:
    """The largest magnitude of each position of a server's state, at geometrically spaced rounds."""

    first: dict[str, float] = field(
        default_factory=dict
    )  # at the start of the phase, or when it was resumed; at least one
    seen: list[dict[str, float]] = field(default_factory=list)  # at the last inspections, the oldest first
    next: int = FIRST_LOOK  # the round of the next inspection

    def begin(self, shared: State) -> None:
        """Record the magnitudes of the state at the start of the rounds."""
        self.first = {name: max(1.0, size) for name, size in _magnitudes(shared).items()}

    def look(self, algorithm: Algorithm, shared: State, done: int, rounds: int, record: Record) -> None:
        """Inspect the state, if due after `done` of `rounds` rounds; DivergenceError if it grows without bound."""
        end = done >= rounds or bool(record.converged)
        if done < self.next and not end:
            return
        if done >= self.next:
            self.seen = [*self.seen, _magnitudes(shared)][-LOOKS_A_DOUBLING - 1 :]
            while self.next <= done:
                self.next = max(self.next + 1, round(self.next * 2 ** (1 / LOOKS_A_DOUBLING)))
        if len(self.seen) <= LOOKS_A_DOUBLING:
            return
        limit = GROWN_AT_END if end else GROWN
        for name, size in self.seen[-1].items():
            sizes = [look.get(name, 0.0) for look in self.seen]
            steady = all(after >= GROWTH_FACTOR * before > 0 for before, after in pairwise(sizes))
            if steady and size >= limit * self.first.get(name, 1.0):
                number = len(record.rounds) - 1
                what = (
                    f"{type(algorithm).__name__}, round {number}: the server's '{name}' grows without end, from "
                    f"{sizes[0]:.3g} to {sizes[-1]:.3g} in the last half of the rounds"
                )
                kept = "This state is kept in this error's `state`"
                raise divergence(algorithm, record, what, SHORTER_STEPS, shared, number, kept=kept)


def _magnitudes(shared: State) -> dict[str, float]:
    """The largest magnitude of each entry that is a position."""
    sizes = {name: float(shared[name].abs().max()) for name in POSITIONS if name in shared and shared[name].numel()}
    return {name: size for name, size in sizes.items() if size < torch.inf}


def cut_short(phase: Phase, context: Context, stop: KeyboardInterrupt) -> None:
    """Record that Ctrl-C or the time limit interrupted a phase, and raise an error if there is no posterior.

    The state is a posterior in the last phase, if it has finished a round or started from a converged phase, or if the
    exception contains part of a round's draws (`PartialWork`).
    """
    algorithm, record = phase.algorithm, context.record
    name, when = type(algorithm).__name__, f"after {phase.done} of {phase.rounds} rounds"
    record.converged = False if record.converged is not None else None
    partial = phase.last and isinstance(stop, PartialWork)
    if phase.last and isinstance(stop, PartialWork):
        one = torch.ones(1, dtype=context.problem.dtype)
        phase.shared = algorithm.combine(phase.shared, stop.messages, one)
        record.rounds.append(Round(name, [0], 0, 0, 0.0, as_figures(stop.info)))
        when = "with the draws that there were"
    if is_time(stop):
        budget = context.budget
        budget.ended = budget.limit_of_time
        record.stopped = f"stopped at the limit of {budget.max_seconds:g} s, {when}"
    else:
        record.interrupted = True
        kept = "the draws that there were" if partial else "what it had found by then"
        record.findings.append(sentences.interrupted(algorithm=name, after="" if partial else f" {when}", kept=kept))
    if not phase.last or not (partial or phase.done or phase.settled):
        where = "" if phase.last else ", with which the run starts"
        raise no_posterior(f"{name}{where}, {when}", context, algorithm, phase.shared)


def no_posterior(when: str, context: Context, algorithm: Algorithm, state: State) -> InterruptedRun | TimeLimitError:
    """The error for a run that was interrupted before there was a posterior; `when` names the algorithm's round."""
    folder = None if context.checkpoint is None else context.checkpoint.folder
    kept = "in this error's `state`" if folder is None else f"in {folder}: go on from there with resume=True"
    if not context.record.stopped:
        return InterruptedRun(
            f"interrupted in {when}, before there was a posterior. The state is kept {kept}", algorithm, state
        )
    return TimeLimitError(
        f"{context.budget.ended} was over in {when}, before there was a posterior. Give the run more time, fewer rows "
        f"or a simpler model. The state is kept {kept}",
        algorithm=algorithm,
        state=state,
    )
