"""The messages that neighbours may still ask for, the state of the links, and farewells.

An agent puts its message of a step here, and neighbours fetch it when they get to that step. The messages of the last
two rounds are kept. A neighbour that died is at most one round behind while the others wait for it; it repeats its
round with the same messages, to the same bits. The last message is part of an agent's checkpoint: an agent that has
ended a round has its neighbours' last messages, but they may not have fetched its own yet.

A link is down from the step in which it failed until a round on which both ends agree. Meanwhile a neighbour's requests
are refused. So both ends skip the same steps, except for the one in which the link failed, which `Flows` corrects.

A farewell has only words of this protocol, since an error of the model's code may have rows in its text.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.deployment.limits import MAX_REASON_CHARACTERS, MAX_ROUNDS
from pyro_fed.errors import ProtocolError

#: The number of rounds whose messages are kept.
NUM_KEPT_ROUNDS = 2


class At(NamedTuple):
    """A step of a run: its phase (-1 before the first), round over all phases, and number in the round; ordered."""

    phase: int
    round: int
    step: int

    def tensor(self) -> Tensor:
        """The three numbers as a tensor, int64."""
        return torch.tensor(self, dtype=torch.int64)

    @classmethod
    def of(cls, numbers: Tensor) -> At:
        """The step from a tensor made by `tensor`."""
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


class NoMessage(Exception):
    """A message that is not available, why, and the last `round` of a phase that has ended."""

    def __init__(self, why: Why, round: int = 0) -> None:
        super().__init__(why.value)
        self.why, self.round = why, round


class Outbox:
    """One agent's messages and the state of its links; used by its own thread and by the gRPC server's threads."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._messages: dict[At, State] = {}
        self._now = At(-2, 0, 0)
        self._down: dict[int, tuple[At, At]] = {}
        self._ended: dict[int, int] = {}
        self._taken: dict[At, set[int]] = {}
        self._closed = False

    def put(self, at: At, message: State) -> None:
        """Offer the message of a step; messages of older rounds are deleted."""
        with self.lock:
            self._messages[at] = message
            self._now = max(self._now, at)
            rounds = sorted({(one.phase, one.round) for one in self._messages if one.round >= 0})
            gone = set(rounds[:-NUM_KEPT_ROUNDS])
            for one in [one for one in self._messages if (one.phase, one.round) in gone]:
                del self._messages[one]
                self._taken.pop(one, None)
            self.lock.notify_all()

    def last(self) -> State:
        """The message of the last step, with that step, for a checkpoint; empty before the first step."""
        with self.lock:
            message = self._messages.get(self._now)
            return {} if message is None else {"at": self._now.tensor(), **prefixed("message", message)}

    def restore(self, kept: State) -> None:
        """Offer the message of a state made by `last`, unless it is empty."""
        if kept:
            self.put(At.of(kept["at"]), within(kept, "message"))

    def get(self, at: At, neighbour: int, seconds: float) -> State:
        """The message of a step for a neighbour, as soon as there is one; NoMessage says why not."""
        end = time.monotonic() + seconds
        with self.lock:
            while True:
                if self.is_down(neighbour, at):
                    raise NoMessage(Why.DOWN)
                if at in self._messages:
                    self._taken.setdefault(at, set()).add(neighbour)
                    self.lock.notify_all()
                    return self._messages[at]
                if at.phase in self._ended and at.round > self._ended[at.phase]:
                    raise NoMessage(Why.ENDED, self._ended[at.phase])
                if at < self._now:
                    raise NoMessage(Why.GONE)
                if self._closed:
                    raise NoMessage(Why.LATE)
                if not self.lock.wait(max(0.0, end - time.monotonic())):
                    raise NoMessage(Why.LATE)

    def take_down(self, neighbour: int, at: At) -> None:
        """Note that the link to a neighbour has failed in a step."""
        with self.lock:
            if not self.is_down(neighbour, at):
                self._down[neighbour] = at, NEVER
            self.lock.notify_all()

    def bring_up(self, neighbour: int, at: At) -> None:
        """Note the step from which a link that is down is up again."""
        with self.lock:
            self._down[neighbour] = self._down[neighbour][0], at

    def is_down(self, neighbour: int, at: At) -> bool:
        """Whether a link is down in a step."""
        with self.lock:
            since, until = self._down.get(neighbour, (NEVER, NEVER))
            return since <= at < until

    def is_lost(self, neighbour: int) -> bool:
        """Whether a link is down, and no round has been agreed on from which it is up again."""
        with self.lock:
            return self._down.get(neighbour, (NEVER, At(-2, 0, 0)))[1] == NEVER

    def up_from(self, neighbour: int) -> At:
        """The step from which a link that was down is up again."""
        with self.lock:
            return self._down[neighbour][1]

    def end(self, phase: int, round: int) -> None:
        """Note that a phase has ended, and its last round."""
        with self.lock:
            self._ended[phase] = round
            self.lock.notify_all()

    def ended(self, phase: int) -> int | None:
        """The last round of a phase; None if it has not ended."""
        with self.lock:
            return self._ended.get(phase)

    def close(self) -> None:
        """Refuse all requests that still wait for a message."""
        with self.lock:
            self._closed = True
            self.lock.notify_all()

    def wait_until_taken(self, at: At, neighbours: set[int], seconds: float) -> None:
        """Wait, at most `seconds`, until some neighbours have fetched the message of a step."""
        with self.lock:
            self.lock.wait_for(lambda: neighbours <= self._taken.get(at, set()), seconds)


def at_of(tensors: State, name: str = "at") -> At:
    """The step in a neighbour's message, from the tensor `name`; ProtocolError if no run has such a step."""
    at = At.of(tensors[name])
    if not (-2 <= at.phase <= NEVER.phase and -1 <= at.round < MAX_ROUNDS and 0 <= at.step < MAX_ROUNDS):
        raise ProtocolError(
            f"'{name}' must be the phase, round and step of a run, from -2, -1 and 0 on, received {tuple(at)}"
        )
    return at


@dataclass(frozen=True)
class Farewell:
    """An agent's message that it leaves its run: its rounds are over (`done`), or why; `differs` if runs are unlike."""

    run: str
    why: str
    done: bool = False
    differs: bool = False

    def encode(self) -> bytes:
        """The message as JSON bytes."""
        return json.dumps({**asdict(self), "why": self.why[:MAX_REASON_CHARACTERS]}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Farewell:
        """Read the bytes of `encode`; ProtocolError for any others."""
        try:
            self = cls(**json.loads(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"farewell: expected JSON with run, why, done and differs: {error!s:.200}") from error
        for name, kind in {"run": str, "why": str, "done": bool, "differs": bool}.items():
            value = getattr(self, name)
            if type(value) is not kind:
                raise ProtocolError(f"farewell: {name} must be a {kind.__name__}, received {value!r:.80}")
        why = "".join(letter if letter.isprintable() else " " for letter in self.why[:MAX_REASON_CHARACTERS])
        return cls(self.run, why, self.done, self.differs)


class DifferError(ProtocolError):
    """Agents do not run the same; `told` is the text for other agents: what differs, without values."""

    def __init__(self, text: str, told: str) -> None:
        super().__init__(text)
        self.told = told
