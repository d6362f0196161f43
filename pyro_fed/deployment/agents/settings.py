"""An agent's waiting times, and the largest message that it accepts."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.conventions.nested_settings import SettingsRepr
from pyro_fed.conventions.setting_checks import check_at_least, check_positive


@dataclass(frozen=True, kw_only=True)
class LinkSettings(SettingsRepr):
    """An agent's waiting times, in seconds, and the largest message that it accepts.

    Args:
        patience: how long it waits for a neighbour's message before the link counts as failed. It should be longer than
            the slowest agent's local update, with compilation, and than a restart.
        patience_all: how long it waits at the start, in rounds that need every agent (Newton's method over the graph),
            and when no neighbour answers at all. Then the run stops.
        retry_every: time between two attempts to reach a neighbour.
        knock: how long it waits, once a round, for an answer of a neighbour whose link is down; and at the end, to say
            that it leaves.
        max_bytes: the largest message that is accepted. Messages of another size than this run's are refused anyway.

    Raises:
        SettingError: a wait that is not positive, or no whole number of bytes.

    Example:
        >>> LinkSettings(patience=300.0)
        LinkSettings(patience=300.0)
    """

    patience: float = 60.0
    patience_all: float = 600.0
    retry_every: float = 0.2
    knock: float = 1.0
    max_bytes: int = 2**28

    def __post_init__(self) -> None:
        check_positive(self, "patience", "patience_all", "retry_every", "knock")
        check_at_least(self, 1, "max_bytes")
