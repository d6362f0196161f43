"""What agents tell their neighbours in the consensus steps of a round, and what they make of it.

The first message of a round is an agent's public belief b_i, whole, and so are those after it but for entries of which
single precision is enough (`OnGraph.coarse`). Of these they are what has changed: with x_i what the agent has and x̂_i
what it has told,

    m_i = float32(x_i - x̂_i),    x̂_i ← x̂_i + m_i,    x_i ← x_i + Σ_j W_ij (x̂_j - x̂_i)

Agents mix what was told, not what they have: whatever rounding did to a message, i gets what j loses (v_i W_ij =
v_j W_ji), Σ_i v_i x_i is kept to the last bits of double precision, and what rounding left out is in the next message.

Why not all entries: the precision of a belief that is narrow in one direction and wide in another loses the wide one
to single precision, and the rounds after it have to find it again. On the model of README's table, with condition
numbers of 1e5, P2PVI's beliefs told in this way took twice as many rounds.
"""

from __future__ import annotations

from typing import Any

import torch

from pyro_fed.algorithm.states import State

#: The largest number in single precision: what is larger is told in parts.
LARGEST = torch.finfo(torch.float32).max


class Told:
    """What some agents have told in a round.

    Args:
        coarse: entries whose changes are told in single precision.
    """

    def __init__(self, coarse: frozenset[str]) -> None:
        self.coarse = coarse
        self.known: State = {}

    def message(self, step: int, mine: State) -> State:
        """What travels in a step, (C, ...), after which it is known."""
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
        """What is known of agents once a message that is not the first of the round has come."""
        return {name: known[name] + value if name in self.coarse else value for name, value in message.items()}

    def mixed(self, algorithm: Any, mine: State, weights: Any, told: State | None = None) -> State:
        """What the agents have after a step.

        Args:
            algorithm: mixes what was told.
            mine: what they have, (R, ...).
            weights: of the step, (R, C).
            told: what is known of those that are mixed, (C, ...); of these agents themselves where left out.
        """
        mixed: State = algorithm.combine(mine, self.known if told is None else told, weights)
        return {
            name: value + (mine[name] - self.known[name]) if name in self.coarse else value
            for name, value in mixed.items()
        }
