"""The state of a Langevin sampler's server between rounds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_fed.infer.langevin.chain_store import ChainStore
from pyro_fed.infer.langevin.client_state import Arrival


class ServerState(NamedTuple):
    """The server's state that all samplers share.

    Attributes:
        chains: the chains' positions and draws.
        burn_in: first steps of each that are not kept, ().
        step_size: h of their steps, before they fall or are shortened, ().
        share: f_s, the share of a chain's visits to each client, (K,).
        visited: which clients have had a visit, (K,); None if it is not used.
    """

    chains: ChainStore
    burn_in: Tensor
    step_size: Tensor
    share: Tensor
    visited: Tensor | None = None

    def arrivals(self, clients: Tensor) -> Arrival:
        """The chains, each for the client in its place, (M,), or for as many in a row, (M K,)."""
        steps, step_size = (value.expand(len(clients)) for value in (self.chains.steps, self.step_size))
        position = self.chains.position
        return Arrival(position.repeat_interleave(len(clients) // len(position), 0), clients, steps, step_size)
