"""Stein variational gradient descent as published: Kassab and Simeone's four algorithms, settings and all."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
