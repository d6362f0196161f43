"""The package's version, from its metadata: set once, in `pyproject.toml`."""

from importlib.metadata import version

#: Of the installed package.
VERSION = version("pyro_fed")
