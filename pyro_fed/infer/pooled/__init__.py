"""Algorithms on the pooled data, as references for federated ones."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
