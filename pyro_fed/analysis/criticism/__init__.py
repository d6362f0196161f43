"""Checks of the model, and of the influence of each client, computed where the data are."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
