"""The federation as one agent knows it: its own rows, and how many the others say they have.

States have one entry an agent, as in a simulation, so that the algorithm's functions, the noise and the schedule are
those of a simulation; an agent reads and writes its own entry, and what stands in the others is as the phase began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.claimed import Claimed, padded
from pyro_fed.federation.federation import Federation

#: Most rows that an agent may say it has.
MAX_ROWS = 10**12


class Together(Claimed):
    """All agents, with the rows of one.

    Args:
        own: a federation of this agent alone.
        names: all agents'.
        me: this one's number.
        counts: rows that each says it has, (A,).

    Raises:
        ProtocolError: a number of rows that nobody has.
    """

    def __init__(self, own: Federation, names: Sequence[str], me: int, counts: Tensor) -> None:
        if bool((counts < 1).any()) or bool((counts > MAX_ROWS).any()):
            worst = int(((counts < 1) | (counts > MAX_ROWS)).nonzero()[0])
            raise ProtocolError(f"agent {names[worst]} says it has {int(counts[worst])} rows")
        vars(self).update(vars(own.with_problem(own.problem)))
        self.me, self.claimed = me, counts
        self.client_names = list(names)
        nothing = torch.zeros(0, dtype=torch.int64)
        self.client_rows = [own.client_rows[0] if i == me else nothing for i in range(len(names))]
        self.problem = replace(own.problem, num_rows=int(counts.sum()), num_clients=len(names))

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """The agent's rows in its own place, its first one in those of the others: index (C, n), num_rows (C,).

        Args:
            clients: their numbers; all by default.
        """
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        own = padded(self.client_rows[self.me], int(self.claimed.max()))
        index = own.new_zeros(self.num_clients, own.shape[1])
        index[self.me] = own[0]
        return ClientData(self.problem.rows, index[chosen], self.claimed[chosen])

    def pooled_data(self) -> ClientData:
        """Nobody has all rows."""
        raise ProtocolError("an agent has its own rows alone")
