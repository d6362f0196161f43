"""How long an agent waits, and how large a message may be."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.conventions.settings_repr import SettingsRepr


@dataclass(frozen=True, kw_only=True)
class LinkSettings(SettingsRepr):
    """Waits of an agent, in seconds, and the largest message that it takes.

    Args:
        patience: for a neighbour's message before the link to it counts as failed: more than the slowest agent's local
            update takes, compilation included, and than a restart should.
        patience_all: at the start, in rounds that mean nothing without one of the agents (Newton's method over the
            graph), and for any neighbour at all where none answers: then the run stops.
        retry_every: between two attempts to reach a neighbour that is not there.
        knock: for an answer of a neighbour whose link is down, once a round, and to reach one at the end.
        max_bytes: the largest message that is taken; a message of another size than this run's is refused anyway.

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
