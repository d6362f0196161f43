"""The messages that neighbours may still ask for, and which links are down.

An agent puts its message of a step here, and neighbours fetch it when they get there. Those of the last two rounds are
kept: a neighbour that died is at most a round behind while the others wait for it, and goes through its round again,
with the same messages and to the same bits. The last message is a part of an agent's checkpoint: who has ended a round
has the last messages of its neighbours, but they need not have taken its own.

A link is down from a step on until a round that both ends agree on. Within that time a neighbour is refused, so that
what it cannot have is the same at both ends but for the one step in which the link failed (see `flows`).
"""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.errors import ProtocolError

#: Rounds whose messages are kept.
KEPT = 2


class At(NamedTuple):
    """A step of a run: all agents go through these in the same order.

    Attributes:
        phase: of the run; -1 before the first.
        round: over all phases; -1 before the phase's first.
        step: consensus steps first, then those that spread figures.
    """

    phase: int
    round: int
    step: int

    def tensor(self) -> Tensor:
        """As it travels."""
        return torch.tensor(self, dtype=torch.int64)

    @classmethod
    def of(cls, numbers: Tensor) -> At:
        """What `tensor` wrote."""
        return cls(*(int(number) for number in numbers))


#: Later than any step.
NEVER = At(2**60, 0, 0)


class Why(Enum):
    """Why a neighbour does not get a message."""

    DOWN = "the link is down"
    ENDED = "the phase has ended"
    GONE = "the round is over"
    LATE = "it is not there yet"
    LEFT = "the agent has left"


class Refused(Exception):
    """A message that is not to be had.

    Attributes:
        why: the reason.
        round: the last round of a phase that has ended.
    """

    def __init__(self, why: Why, round: int = 0) -> None:
        super().__init__(why.value)
        self.why, self.round = why, round


class Outbox:
    """One agent's messages, and its links' state; used by its own thread and by those of the server."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._messages: dict[At, State] = {}
        self._now = At(-2, 0, 0)
        self._down: dict[int, tuple[At, At]] = {}
        self._ended: dict[int, int] = {}
        self._taken: dict[At, set[int]] = {}
        self._closed = False

    def put(self, at: At, message: State) -> None:
        """The message of a step, which is now ready; those of older rounds are let go of."""
        with self.lock:
            self._messages[at] = message
            self._now = max(self._now, at)
            rounds = sorted({(one.phase, one.round) for one in self._messages if one.round >= 0})
            gone = set(rounds[:-KEPT])
            for one in [one for one in self._messages if (one.phase, one.round) in gone]:
                del self._messages[one]
                self._taken.pop(one, None)
            self.lock.notify_all()

    def last(self) -> State:
        """The message of the last step, with its step, for a checkpoint; nothing before the first."""
        with self.lock:
            message = self._messages.get(self._now)
            return {} if message is None else {"at": self._now.tensor(), **prefixed("message", message)}

    def restore(self, kept: State) -> None:
        """Put what `last` wrote, if it is there."""
        if kept:
            self.put(At.of(kept["at"]), within(kept, "message"))

    def get(self, at: At, neighbour: int, seconds: float) -> State:
        """The message of a step, as soon as it is there.

        Raises:
            Refused: it is not to be had.
        """
        end = time.monotonic() + seconds
        with self.lock:
            while True:
                if self.is_down(neighbour, at):
                    raise Refused(Why.DOWN)
                if at in self._messages:
                    self._taken.setdefault(at, set()).add(neighbour)
                    self.lock.notify_all()
                    return self._messages[at]
                if at.phase in self._ended and at.round > self._ended[at.phase]:
                    raise Refused(Why.ENDED, self._ended[at.phase])
                if at < self._now:
                    raise Refused(Why.GONE)
                if self._closed:
                    raise Refused(Why.LATE)
                if not self.lock.wait(max(0.0, end - time.monotonic())):
                    raise Refused(Why.LATE)

    def take_down(self, neighbour: int, at: At) -> None:
        """The link to a neighbour has failed in a step."""
        with self.lock:
            if not self.is_down(neighbour, at):
                self._down[neighbour] = at, NEVER
            self.lock.notify_all()

    def bring_up(self, neighbour: int, at: At) -> None:
        """The link that is down is up again from a step on."""
        with self.lock:
            self._down[neighbour] = self._down[neighbour][0], at

    def is_down(self, neighbour: int, at: At) -> bool:
        """Whether a link is down in a step."""
        with self.lock:
            since, until = self._down.get(neighbour, (NEVER, NEVER))
            return since <= at < until

    def is_lost(self, neighbour: int) -> bool:
        """Whether a link is down and no round is agreed on from which it is up."""
        with self.lock:
            return self._down.get(neighbour, (NEVER, At(-2, 0, 0)))[1] == NEVER

    def up_from(self, neighbour: int) -> At:
        """The step from which a link that was down is up."""
        with self.lock:
            return self._down[neighbour][1]

    def end(self, phase: int, round: int) -> None:
        """A phase has ended with a round."""
        with self.lock:
            self._ended[phase] = round
            self.lock.notify_all()

    def ended(self, phase: int) -> int | None:
        """The last round of a phase that has ended."""
        with self.lock:
            return self._ended.get(phase)

    def close(self) -> None:
        """Let go of those who wait for what will not come."""
        with self.lock:
            self._closed = True
            self.lock.notify_all()

    def wait_until_taken(self, at: At, neighbours: set[int], seconds: float) -> None:
        """Wait until neighbours have fetched a message, or so long."""
        with self.lock:
            self.lock.wait_for(lambda: neighbours <= self._taken.get(at, set()), seconds)


def at_of(tensors: State, name: str = "at") -> At:
    """A step that a neighbour names.

    Raises:
        ProtocolError: numbers that no run has.
    """
    at = At.of(tensors[name])
    if not (-2 <= at.phase <= NEVER.phase and -1 <= at.round < 10**10 and 0 <= at.step < 10**10):
        raise ProtocolError(f"no run has a step {tuple(at)}")
    return at
