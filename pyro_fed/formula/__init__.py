"""Regressions by a formula over clients' frames: their design, the Pyro model that it stands for, the federation."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
