"""Results for readers: tables in the terminal, one HTML page."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
