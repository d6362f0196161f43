"""What the server of a Langevin sampler keeps between rounds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.langevin.chain_store import ChainStore
from pyro_fed.infer.langevin.client_state import Arrival


class ServerState(NamedTuple):
    """The server's state, as far as all samplers have it.

    Attributes:
        chains: where the chains are, and their draws.
        burn_in: first steps of each that are not kept, ().
        step_size: h of their steps, before they fall or are shortened, ().
        share: f_s, how often a chain is at each client, (K,).
        visited: which clients have had a visit, (K,); None where nobody asks.
    """

    chains: ChainStore
    burn_in: Tensor
    step_size: Tensor
    share: Tensor
    visited: Tensor | None = None

    @classmethod
    def of(cls, state: State) -> ServerState:
        """From the run's dictionary."""
        return cls(ChainStore.of(state), **{name: state[name] for name in cls._fields[1:] if name in state})

    def state(self) -> State:
        """As entries of the run's dictionary."""
        entries = {name: value for name, value in self._asdict().items() if name != "chains" and value is not None}
        return self.chains.state() | entries

    def arrivals(self, clients: Tensor) -> Arrival:
        """The chains, each to the client in its place, (M,), or to as many in a row, (M K,)."""
        steps, step_size = (value.expand(len(clients)) for value in (self.chains.steps, self.step_size))
        position = self.chains.position
        return Arrival(position.repeat_interleave(len(clients) // len(position), 0), clients, steps, step_size)
