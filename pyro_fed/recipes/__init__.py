"""Models and recipes by name or path: an algorithm and its settings as data, in one TOML file."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
