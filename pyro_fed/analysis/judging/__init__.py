"""How good a result is: distances, scores, calibration, predictions, and reasons to doubt it."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
