"""The traits of a model: its size, and the structure of its rows and of its prior. `Problem.traits` has them."""

from pyro_fed.density.traits.record import FULL_DIM, LARGE_DIM, Search, Traits

__all__ = ["FULL_DIM", "LARGE_DIM", "Search", "Traits"]
