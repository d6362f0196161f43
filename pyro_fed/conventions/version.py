"""Which version of the package this is, from its metadata: said once, in `pyproject.toml`."""

from importlib.metadata import version

#: Of the installed package.
VERSION = version("pyro_fed")
