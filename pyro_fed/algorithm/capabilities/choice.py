"""Which algorithm is run where a user names one, and with which settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyro_fed.algorithm.contract import Algorithm


class DrawsAhead(ABC):
    """Its draws are made during its rounds, so that it has to know before them how many a run is asked for."""

    @abstractmethod
    def for_draws(self, num_draws: int) -> Self:
        """This algorithm, which makes so many.

        Args:
            num_draws: as many as the run's result is to have.
        """


class Delegates(ABC):
    """What a user names; by its settings another algorithm may be run in its place.

    Example:
        >>> resolved(pf.FedEP(guide=my_guide))
        GuidedFedEP(guide=__main__.my_guide)
    """

    @abstractmethod
    def delegate(self) -> Algorithm:
        """The algorithm that is run: another one, or this."""


def resolved(algorithm: Algorithm) -> Algorithm:
    """The algorithm that is run where a user names this one."""
    return algorithm.delegate() if isinstance(algorithm, Delegates) else algorithm
