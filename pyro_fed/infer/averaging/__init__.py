"""Averages of points instead of distributions, with adaptive optimisers at the server, and of a guide's gradients."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
