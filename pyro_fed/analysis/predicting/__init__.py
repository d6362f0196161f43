"""Predictions for new rows: predictive draws, for known groups and for new ones."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
