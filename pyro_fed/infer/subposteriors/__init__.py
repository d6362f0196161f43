"""Algorithms whose clients sample posteriors of their own, once, and whose server combines the draws."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
