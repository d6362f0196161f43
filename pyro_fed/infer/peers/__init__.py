"""Algorithms without a server: agents on a graph who mix their beliefs with those of their neighbours."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
