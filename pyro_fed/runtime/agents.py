"""The path by which programs may import `pyro_fed.deployment.agents`, too; nothing in the package does."""

from pyro_fed.deployment.agents import *  # noqa: F403
from pyro_fed.deployment.agents import __all__ as __all__
