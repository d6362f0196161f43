"""The messages of agents to their neighbours in the consensus steps of a round, and how they are mixed.

The first message of a round is an agent's whole public belief b_i in double precision. Later messages have in single
precision those entries for which it suffices (`OnGraph.coarse`), as differences. With the agent's value x_i and the
value x̂_i that its neighbours know,

    m_i = float32(x_i - x̂_i),    x̂_i ← x̂_i + m_i,    x_i ← x_i + Σ_j W_ij (x̂_j - x̂_i)

Agents mix the values x̂ that were sent, not x. So whatever rounding did to a message, i receives what j gives away (v_i
W_ij = v_j W_ji), and Σ_i v_i x_i is preserved to the last bits of double precision. What rounding left out is part of
the next message.

Not all entries are sent so. If a belief is narrow in one direction and wide in another, its precision matrix loses the
wide one in single precision. Where sites have negative curvature, P2PVI then left a posterior on two hyperbolas for
means of 1e5 and more.
"""

from __future__ import annotations

from typing import Any

import torch

from pyro_fed.algorithm.states import State
from pyro_fed.graph import Consensus

#: The largest number in single precision; a larger difference is sent in several messages.
LARGEST = torch.finfo(torch.float32).max


class NeighbourValues:
    """The values x̂ of some agents, as their neighbours know them in a round.

    Changes of the entries named in `coarse` are sent in single precision.
    """

    def __init__(self, coarse: frozenset[str]) -> None:
        self.coarse = coarse
        self.known: State = {}

    @classmethod
    def of(cls, coarse: frozenset[str], consensus: Consensus) -> NeighbourValues:
        """The values for a round, which are sent whole if neighbours have not received the values before."""
        return cls(coarse if consensus.tells_all else frozenset())

    def message(self, step: int, mine: State) -> State:
        """The messages (C, ...) of a step of agents with values x (C, ...), after which their values x̂ are updated."""
        if step == 0:
            self.known = mine
            return mine
        sent = {
            name: (value - self.known[name]).clamp(-LARGEST, LARGEST).float() if name in self.coarse else value
            for name, value in mine.items()
        }
        self.known = self.after(self.known, sent)
        return sent

    def after(self, known: State, message: State) -> State:
        """The values x̂ (C, ...) of agents after a message that is not the round's first."""
        return {name: known[name] + value if name in self.coarse else value for name, value in message.items()}

    def mixed(self, algorithm: Any, mine: State, weights: Any, told: State | None = None) -> State:
        """The values x (R, ...) of agents after a step with weights (R, C), mixed by `combine`.

        `told` are the values x̂ (C, ...) that are mixed, by default these agents' own.
        """
        mixed: State = algorithm.combine(mine, self.known if told is None else told, weights)
        return {
            name: value + (mine[name] - self.known[name]) if name in self.coarse else value
            for name, value in mixed.items()
        }
