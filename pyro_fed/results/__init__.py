"""Results: draws and the record of a run as InferenceData."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
