"""Algorithms with a temperature, as in generalised Bayes."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.contract import Algorithm


@dataclass(frozen=True, kw_only=True)
class Tempered(Algorithm):
    """Base of algorithms whose clients' rows come with their likelihood to the power 1/α.

    Args:
        temperature: α; 1 is Bayes.
    """

    temperature: float = 1.0

    def row_temperature(self) -> float:
        """α."""
        return self.temperature
