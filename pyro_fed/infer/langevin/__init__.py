"""Langevin dynamics: Markov chains that travel from client to client, or run at each client and are averaged."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
