"""Algorithms that another one carries out, chosen by their settings: `FedEP(guide=function)` is one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyro_fed.algorithm.contract import Algorithm


class Delegates(ABC):
    """What an algorithm takes up that may stand for another: a user names the one, and `run` runs the other.

    Example:
        >>> resolved(pf.FedEP(guide=my_guide))
        GuidedFedEP(guide=__main__.my_guide)
    """

    @abstractmethod
    def delegate(self) -> Algorithm:
        """What is run in the place of this algorithm: another one, or itself."""


def resolved(algorithm: Algorithm) -> Algorithm:
    """What is run where a user names this algorithm."""
    return algorithm.delegate() if isinstance(algorithm, Delegates) else algorithm
