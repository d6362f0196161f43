"""What a run may cost: rounds and bytes, counted over all of its phases and stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyro_fed.algorithm.record import Record


class BudgetEnded(Exception):
    """The next round would cost more than is left."""


@dataclass
class Budget:
    """Limits, and which of them ended the run.

    Attributes:
        max_rounds: None is no limit.
        max_bytes: what the clients receive and send; likewise.
        ended: the limit that a round would have exceeded, such as "max_rounds=50"; "" while there was none.
    """

    max_rounds: int | None = None
    max_bytes: int | None = None
    ended: str = ""
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
