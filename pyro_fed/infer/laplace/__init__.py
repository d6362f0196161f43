"""The federated Laplace approximation: the posterior's mode and the curvature there, where other algorithms start."""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
