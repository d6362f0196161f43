"""A second path by which programs may import `pyro_fed.deployment.agents`; nothing in the package uses it."""

from pyro_fed.deployment.agents import *  # noqa: F403
from pyro_fed.deployment.agents import __all__ as __all__
