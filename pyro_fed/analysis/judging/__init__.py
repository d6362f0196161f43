"""Measures of a result: distances, scores, calibration, predictions, and reasons for doubt."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
