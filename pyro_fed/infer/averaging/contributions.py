"""Contributions of the clients of an averaging algorithm: their steps."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.bounding import relative_rows, within_cohort
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State


@dataclass(frozen=True)
class StepContributions(Contributions):
    """Contributions to `FedAvg` and its kin, whose clients send their steps as `delta`.

    `obstacle` says why the steps cannot be bounded, and the cure; it is empty if they can be.
    """

    obstacle: str = ""

    def bounding_obstacle(self) -> str | None:
        """The reason why the steps cannot be bounded, and the cure; "" if they can be."""
        return self.obstacle

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Clip every number of a step to the cohort's range."""
        rows = sent.own_rows
        share = None if rows is None else relative_rows(rows.double())
        found, cut = within_cohort(sent.messages["delta"], limits.pull, share)
        return BoundedMessages(shared, {**sent.messages, "delta": found}, {}, cut)
