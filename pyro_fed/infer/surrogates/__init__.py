"""Gaussian surrogates of the clients' likelihoods, for FSGLD and others, and importance sampling from them (FedAIS)."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
