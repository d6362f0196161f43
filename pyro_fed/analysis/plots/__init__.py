"""Figures of results, partitions and graphs; each loads matplotlib when it is first used."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
