"""What a model predicts for rows that it has not seen: predictive draws, of known groups and of new ones."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
