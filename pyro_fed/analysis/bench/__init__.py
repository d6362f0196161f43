"""Federated posteriors with known answers, any algorithm, one table: cases, adapters, scores, the page."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
