"""Where a model does not fit, and which client made the answer what it is: computed where the data lie."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
