"""What a run may cost: rounds, bytes and seconds, over all of its phases and stages."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pyro_fed.algorithm.record import Record
from pyro_fed.conventions.time_limit import now, until

#: The checks of an answer may go on until so many times the seconds that its rounds were given.
CHECKED_BY = 2.0
#: Seconds that rounds which are done at once may take where time is limited: it is looked at between them.
AT_ONCE = 1.0


class BudgetEnded(Exception):
    """The next round would cost more than is left."""


@dataclass
class Budget:
    """Limits, and which of them ended the run.

    Attributes:
        max_rounds: None is no limit.
        max_bytes: what the clients receive and send; likewise.
        max_seconds: on the clock, since the run began; likewise.
        ended: the limit that a round would have exceeded, such as "max_rounds=50"; "" while there was none.
        began: when the run did, by `now`.
    """

    max_rounds: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    ended: str = ""
    began: float = field(default_factory=now)
    _spent: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)

    def check(self, record: Record, phase: str, announced: int) -> None:
        """Whether another round may begin.

        A round is expected to cost what the one before it did, if that was of the same phase, and at least what is
        announced: what a client will send in a phase's first round is not known.

        Args:
            record: the rounds so far.
            phase: the algorithm's name.
            announced: bytes that the clients are about to receive.

        Raises:
            BudgetEnded: it may not.
        """
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

    def of_rounds(self) -> AbstractContextManager[None]:
        """Within it `tick` raises once the rounds have had their seconds."""
        return until(None if self.max_seconds is None else self.began + self.max_seconds)

    def of_checks(self) -> AbstractContextManager[None]:
        """Within it `tick` raises once the rounds and the answer's checks have had theirs, see `CHECKED_BY`."""
        return until(None if self.max_seconds is None else self.began + CHECKED_BY * self.max_seconds)

    def seconds_left(self) -> float | None:
        """Of the rounds' seconds; None where time is not limited."""
        return None if self.max_seconds is None else max(0.0, self.began + self.max_seconds - now())

    def at_once(self, record: Record) -> float:
        """Rounds like the last one that may be done without a look at the clock; infinity where it is not asked.

        Args:
            record: the rounds so far.
        """
        if self.max_seconds is None:
            return float("inf")
        last = record.rounds[-1] if record.rounds else None
        seconds = last.seconds * len(last.clients) if last is not None else AT_ONCE
        return AT_ONCE / max(seconds, AT_ONCE / 1_000_000)
