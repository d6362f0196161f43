"""The path by which apps import `pyro_fed.deployment.flower`; each name is loaded when it is first used."""

from pyro_fed.deployment import flower as _room

__getattr__, __dir__, __all__ = _room.__getattr__, _room.__dir__, _room.__all__
