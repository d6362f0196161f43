"""Executors, which do the clients' work: in one batch, one by one, or in other processes."""

from pyro_fed.conventions.doors import public_dir
from pyro_fed.runtime.executors.base import Executor, Reply, Work
from pyro_fed.runtime.executors.faulty import Faulty
from pyro_fed.runtime.executors.local import Sequential, Vectorised, resolve
from pyro_fed.runtime.executors.ray import Ray

__all__ = ["Executor", "Faulty", "Ray", "Reply", "Sequential", "Vectorised", "Work", "resolve"]
__dir__ = public_dir(__all__)
