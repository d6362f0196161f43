"""Limits of rounds, bytes and seconds over all phases and stages of a run, and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pyro_fed.algorithm.record import Record
from pyro_fed.conventions.resources import TimeIsUp, ending_at, now
from pyro_fed.errors import TimeLimitError

#: Share of the remaining seconds that the rounds of a stage, and then its checks, may take; the rest is for what
#: follows.
SHARE_OF_TIME_LEFT = 2 / 3
#: Longest time of rounds that are run at once if time is limited, in seconds, since the clock is read after them.
SECONDS_AT_ONCE = 1.0


class BudgetEnded(Exception):
    """The next round would exceed the budget."""


@dataclass
class Budget:
    """Limits of a run, None for no limit, and the limit that ended it."""

    max_rounds: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    ended: str = ""
    began: float = field(default_factory=now)
    _rounds_end: float | None = field(default=None, init=False)
    _spent: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)

    def check(self, record: Record, phase: str, announced: int) -> None:
        """Raise BudgetEnded if another round would exceed the limits of rounds or bytes."""
        rounds = record.rounds
        if self.max_rounds is not None and len(rounds) >= self.max_rounds:
            self.ended = f"max_rounds={self.max_rounds}"
        elif self.max_bytes is not None:
            self._spent += sum(one.bytes for one in rounds[self._counted :])
            self._counted = len(rounds)
            alike = rounds[-1].bytes if rounds and rounds[-1].phase == phase else 0
            if self._spent + max(announced, alike) > self.max_bytes:
                self.ended = f"max_bytes={self.max_bytes}"
        if self.ended:
            raise BudgetEnded

    def begin_rounds(self) -> None:
        """Set the time by which the rounds of a stage, including its earlier phases, have to end."""
        self._rounds_end = self._end_of_share()

    def of_rounds(self) -> AbstractContextManager[None]:
        """A context in which `tick` raises once the stage's seconds for rounds are over."""
        return ending_at(self._rounds_end)

    def of_checks(self) -> AbstractContextManager[None]:
        """A context in which `tick` raises once the seconds for checks that begin now are over."""
        return ending_at(self._end_of_share())

    def of_all(self) -> AbstractContextManager[None]:
        """A context in which `tick` raises once all seconds are over."""
        return ending_at(None if self.max_seconds is None else self.began + self.max_seconds)

    @contextmanager
    def of_preparation(self, what: str) -> Iterator[None]:
        """A context for work before there is a posterior; TimeLimitError names `what` was not prepared in time."""
        try:
            with self.of_all():
                yield
        except TimeIsUp as stop:
            self.ended = self.limit_of_time
            raise TimeLimitError(
                f"{self.ended} was over before {what}, and before there was a posterior. Give the run more time, fewer "
                "rows or a simpler model"
            ) from stop

    @property
    def limit_of_time(self) -> str:
        """The limit of seconds, as `ended` has it."""
        return f"max_seconds={self.max_seconds:g}"

    def _end_of_share(self) -> float | None:
        if self.max_seconds is None:
            return None
        begins = now()
        return begins + SHARE_OF_TIME_LEFT * max(0.0, self.began + self.max_seconds - begins)

    def seconds_left(self) -> float | None:
        """Seconds remaining for rounds; None without a time limit."""
        return None if self._rounds_end is None else max(0.0, self._rounds_end - now())

    def at_once(self, record: Record) -> float:
        """The number of rounds like the last one until the clock is read again; infinity without a time limit."""
        if self.max_seconds is None:
            return float("inf")
        last = record.rounds[-1] if record.rounds else None
        seconds = last.seconds * len(last.clients) if last is not None else SECONDS_AT_ONCE
        return SECONDS_AT_ONCE / max(seconds, SECONDS_AT_ONCE / 1_000_000)


class Interruption:
    """A context that records Ctrl-C in the main thread; a handler set by the user is unchanged."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt again if it was lost."""
        if self.asked:
            raise KeyboardInterrupt
