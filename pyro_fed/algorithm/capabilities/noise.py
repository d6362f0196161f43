"""Noise that came with messages, as that of privacy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pyro_fed.algorithm.privacy import Private


class NoisyRound(NamedTuple):
    """A round whose messages came with noise.

    Args:
        clients: how many worked.
        figures: the algorithm's `monitor`.
    """

    clients: int
    figures: dict[str, float]


class NoiseTracking(ABC):
    """What becomes in its server's state of noise that came with the messages of earlier rounds is known."""

    @abstractmethod
    def evenly(self) -> Self:
        """This algorithm with steps that do not depend on the steps before.

        Acceleration, say, would follow the noise, by a part that depends on it.

        Raises:
            SettingError: a setting has such steps; names it and the cure.
        """

    @abstractmethod
    def noise_kept(self, rounds: list[NoisyRound], num_clients: int) -> tuple[Self, float]:
        """A round that puts all rounds' noise into the last state at once.

        Args:
            rounds: those in which somebody worked.
            num_clients: K.

        Returns:
            this algorithm without what would hold noise back as it holds back a long step, and how many times as
            loud as in one of the rounds its messages' noise has to be.
        """


class NoiseWithin(ABC):
    """Noise that came with its messages is a part of its own randomness, so that its draws have it as they are."""

    @abstractmethod
    def privately(self, private: Private | None) -> Self:
        """This algorithm, which knows of the noise.

        Args:
            private: the run's combination, where that is differential privacy.

        Raises:
            SettingError: its settings do not go with that noise; names them and the cure.
        """

    @abstractmethod
    def at_client(self) -> Self:
        """This algorithm as the clients know it, by their own recipe, which says nothing of the server's noise."""
