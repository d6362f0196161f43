"""Sums of what has passed over each link, by which two ends that have diverged agree again.

An exchange may happen on one side only: i has received j's message of a step, but j has not received i's. No protocol
can exclude that. So each end adds up what it has received over the link,

    F_ij = Σ_steps W_ij (b_j - b_i)

and remembers the last step in the sum. If both ends have taken the same steps, detailed balance gives
v_i F_ij = -v_j F_ji. Before a link that was down is used again, the end whose sum is older takes over the other's,
F_ij ← -(v_j / v_i) F_ji, and adds the difference to its belief. Then Σ_i v_i q_i is again the product of all sites, and
each datum counts once, whatever was lost. This also holds after an agent has gone back to an earlier checkpoint, since
the sums are saved with the belief.

Source: flow updating (Jesus, Baquero & Almeida, *Fault-tolerant aggregation by flow updating*, 2009), for weights of a
reversible W.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.deployment.agents.outbox import At

#: Before the first step of a phase.
FIRST = At(-1, -1, 0)


@dataclass
class Flows:
    """The sums F_ij (1, ...) of an agent's links in a phase, and the last step in each, by neighbour j."""

    sums: dict[int, State] = field(default_factory=dict)
    last: dict[int, At] = field(default_factory=dict)

    @classmethod
    def none(cls, neighbours: list[int], like: State) -> Flows:
        """Sums of zero, before the first step; `like` is a state with the shapes of a belief (C, ...)."""
        empty = {name: value.new_zeros((1, *value.shape[1:])) for name, value in like.items()}
        return cls(dict.fromkeys(neighbours, empty), dict.fromkeys(neighbours, FIRST))

    def add(self, neighbour: int, at: At, weight: float, theirs: State, mine: State) -> None:
        """Add an exchange, W_ij (b_j - b_i), to a link's sum; `theirs` is b_j, `mine` b_i, both (1, ...)."""
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: before[name] + weight * (theirs[name] - mine[name]) for name in before}
        self.last[neighbour] = at

    def adopt(self, neighbour: int, at: At, theirs: State, ratio: float) -> State:
        """Take over F_ji (1, ...), the other end's sum until step `at`; return the correction (1, ...) to the belief.

        `ratio` is v_j / v_i.
        """
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: -ratio * theirs[name] for name in before}
        self.last[neighbour] = at
        return {name: value - before[name] for name, value in self.sums[neighbour].items()}

    def saved_state(self) -> State:
        """Sums and steps as tensors, for a checkpoint."""
        found: State = {}
        for neighbour, sums in self.sums.items():
            found |= prefixed(f"{neighbour}", {**prefixed("sum", sums), "last": self.last[neighbour].tensor()})
        return found

    @classmethod
    def restored(cls, neighbours: list[int], kept: State) -> Flows:
        """Sums and steps from tensors that `saved_state` has made."""
        parts = {neighbour: within(kept, f"{neighbour}") for neighbour in neighbours}
        sums = {neighbour: within(part, "sum") for neighbour, part in parts.items()}
        return cls(sums, {neighbour: At.of(part["last"]) for neighbour, part in parts.items()})
