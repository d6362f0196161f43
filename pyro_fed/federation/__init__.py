"""A model, its data and their partition: clients, each with its rows."""

from pyro_fed.federation.federation import Federation

__all__ = ["Federation"]
