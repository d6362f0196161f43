"""Flower: the clients are real ones, at nodes that run an app which whoever starts a run sends, see `apps`.

The same round loop runs inside Flower's ServerApp, with an executor that sends each client's work to its ClientApp.
What travels: once, a description of each client (its name, number of rows, shapes and dtypes); then encoded messages,
see `pyro_fed.runtime.messages`. Rows stay at the clients, and so do their states, in Flower's context, except between
two phases, where the algorithm makes the new states out of the old ones at the server, and with a checkpoint, which has
them. Needs the extra `flower`.
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
