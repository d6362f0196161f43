"""Surrogates of the clients' likelihoods: from short runs, corrected by importance weights, used by FSGLD."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
