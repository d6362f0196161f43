"""Algorithms that use all data in one place: references for the others."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
