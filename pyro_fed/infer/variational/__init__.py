"""Variational inference with Pyro's guides, by the clients' gradients of a bound of the evidence."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
