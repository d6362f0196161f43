"""The federation as one agent knows it: its own rows, and how many the others say they have.

States have one entry an agent, as in a simulation, so that the algorithm's functions, the noise and the schedule are
those of a simulation; an agent reads and writes its own entry, and what stands in the others is as the phase began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.federation import Federation

#: Rows that an agent's own are padded to, at most: what others claim to have makes no work here.
MOST_PADDED = 10_000
#: Most rows that an agent may say it has.
MAX_ROWS = 10**12


class Together(Federation):
    """All agents, with the rows of one.

    Args:
        own: a federation of this agent alone.
        names: all agents'.
        me: this one's number.
        counts: rows that each says it has, (A,).

    Raises:
        ProtocolError: a number of rows that nobody has.
    """

    holds_data = False

    def __init__(self, own: Federation, names: Sequence[str], me: int, counts: Tensor) -> None:
        if bool((counts < 1).any()) or bool((counts > MAX_ROWS).any()):
            worst = int(((counts < 1) | (counts > MAX_ROWS)).nonzero()[0])
            raise ProtocolError(f"agent {names[worst]} says it has {int(counts[worst])} rows")
        vars(self).update(vars(own.with_problem(own.problem)))
        self.me, self._claimed = me, counts
        self.client_names = list(names)
        nothing = torch.zeros(0, dtype=torch.int64)
        self.client_rows = [own.client_rows[0] if i == me else nothing for i in range(len(names))]
        self.problem = replace(own.problem, num_rows=int(counts.sum()), num_clients=len(names))

    @property
    def row_counts(self) -> Tensor:
        """(A,) rows that each agent says it has; nothing here is as long as that."""
        return self._claimed

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """The agent's rows in its own place, its first one in those of the others: index (C, n), num_rows (C,).

        Args:
            clients: their numbers; all by default.
        """
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        own = self.client_rows[self.me]
        longest = int(self._claimed.max())  # as a simulation pads them, so that sums are taken in its order
        index = torch.zeros(self.num_clients, longest if longest <= MOST_PADDED else len(own), dtype=torch.int64)
        index[self.me, : len(own)] = own
        return ClientData(self.problem.rows, index[chosen], self._claimed[chosen])

    def pooled_data(self) -> ClientData:
        """Nobody has all rows."""
        raise ProtocolError("an agent has its own rows alone")

    def summary(self) -> pd.DataFrame:
        """A table of the agents: the rows that each says it has, and their share of all."""
        counts = self._claimed.numpy()
        index = pd.Index(self.client_names, name="client")
        return pd.DataFrame({"rows": counts, "share": counts / counts.sum()}, index=index)
