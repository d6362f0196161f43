"""Clients that sample posteriors of their own, once, and a server that puts their draws together."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
