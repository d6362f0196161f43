"""Several algorithms in turn: the answer of the first one that nothing speaks against."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
