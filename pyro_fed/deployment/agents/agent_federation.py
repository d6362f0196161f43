"""The federation as one agent knows it: its own rows, and how many rows the others say they have.

States have one entry for each agent, as in a simulation, so that the algorithm's functions, the noise and the schedule
are the same. An agent reads and writes its own entry; the other entries keep their values from the phase's beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.claimed_federation import ClaimedFederation, padded_index
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.federation import Federation

#: The most rows that an agent may claim to have.
MAX_ROWS = 10**12


class AgentFederation(ClaimedFederation):
    """The federation of all agents, with the rows of one, `own`, whose number is `me`.

    `counts` (A,) are the numbers of rows that the agents claim to have.

    Raises:
        ProtocolError: a number of rows below 1 or above `MAX_ROWS`.
    """

    def __init__(self, own: Federation, names: Sequence[str], me: int, counts: Tensor) -> None:
        if bool((counts < 1).any()) or bool((counts > MAX_ROWS).any()):
            worst = int(((counts < 1) | (counts > MAX_ROWS)).nonzero()[0])
            raise ProtocolError(
                f"agent {names[worst]} says it has {int(counts[worst])} rows, expected 1 to {MAX_ROWS}: look at the "
                "rows that it was given"
            )
        vars(self).update(vars(own.with_problem(own.problem)))
        self.me, self.claimed = me, counts
        self.client_names = list(names)
        nothing = torch.zeros(0, dtype=torch.int64)
        self.client_rows = [own.client_rows[0] if i == me else nothing for i in range(len(names))]
        self.problem = replace(own.problem, num_rows=int(counts.sum()), num_clients=len(names))

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """Rows of some agents: index (C, n), num_rows (C,). Other agents' rows are this agent's first row."""
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        own = padded_index(self.client_rows[self.me], int(self.claimed.max()))
        index = own.new_zeros(self.num_clients, own.shape[1])
        index[self.me] = own[0]
        return ClientData(self.problem.rows, index[chosen], self.claimed[chosen])

    def pooled_data(self) -> ClientData:
        """Refuse to pool rows, which an agent cannot.

        Raises:
            ProtocolError: always.
        """
        raise ProtocolError(
            "an agent has only its own rows, and cannot run an algorithm on pooled data: take one for agents, P2PVI, "
            "P2PEP or P2PFedAvg"
        )
