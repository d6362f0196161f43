"""Inference algorithms, by family; their names stand in `__init__.pyi`."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
