"""The interface of algorithms: settings and pure functions of tensors, schedules, and combinations of messages."""

from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData

__all__ = ["BATCHES", "Algorithm", "Batch", "ClientData", "Noise", "Start", "State"]
