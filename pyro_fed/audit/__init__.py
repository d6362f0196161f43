"""The audit at the end of a run: evidence of the model's own densities, at the run's draws, against the result."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
