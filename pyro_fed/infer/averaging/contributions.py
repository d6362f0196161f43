"""Contributions of the clients of an averaging: steps."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.bounding import relative_rows, within_cohort
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State


@dataclass(frozen=True)
class StepContributions(Contributions):
    """Of `FedAvg` and its kin.

    Args:
        algorithm: whose clients send their steps as `delta`.
        obstacle: why these cannot be bounded, and the cure; "": they can.
    """

    obstacle: str = ""

    def bounding_obstacle(self) -> str | None:
        """As given."""
        return self.obstacle

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Steps whose every number is within the cohort's range."""
        rows = sent.own_rows
        share = None if rows is None else relative_rows(rows.double())
        found, cut = within_cohort(sent.messages["delta"], limits.pull, share)
        return BoundedMessages(shared, {**sent.messages, "delta": found}, {}, cut)
