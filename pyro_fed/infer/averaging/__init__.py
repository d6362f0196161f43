"""Federated averaging: points instead of distributions, with adaptive optimisers at the server."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
