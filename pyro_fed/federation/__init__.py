"""A model, its data and their partition: clients, each with its rows."""

from pyro_fed.federation import partition
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.standardise import column_sums, pooled_moments

__all__ = ["Federation", "column_sums", "partition", "pooled_moments"]
