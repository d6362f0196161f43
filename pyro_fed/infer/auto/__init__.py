"""Several algorithms in turn: the result of the first one without doubts."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
