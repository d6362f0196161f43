"""What has passed over each link, by which two ends that differ are brought in step again.

An exchange may be cut in two: i has what j sent in a step, and j has not what i sent. No protocol can exclude that. So
each end adds up what the link has brought it,

    F_ij = Σ_steps W_ij (b_j - b_i),        v_i F_ij = -v_j F_ji     where both ends have taken the same steps

by detailed balance, and remembers the last step that is in it. Before a link that was down is used again, the end with
the older sum takes the other's, F_ij ← -(v_j / v_i) F_ji, and adds the difference to its belief. So Σ_i v_i q_i is that
of the sites again, and each datum counts once, whatever was lost and whoever went back to an earlier checkpoint: the
sums are saved with the belief.

Source: flow updating (Jesus, Baquero & Almeida, *Fault-tolerant aggregation by flow updating*, 2009), for weights of a
reversible W.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.runtime.agents.outbox import At

#: Before the first step of a phase.
FIRST = At(-1, -1, 0)


@dataclass
class Flows:
    """What has passed over an agent's links in a phase.

    Attributes:
        sums: F_ij by neighbour, (1, ...) each.
        last: the last step in it.
    """

    sums: dict[int, State] = field(default_factory=dict)
    last: dict[int, At] = field(default_factory=dict)

    @classmethod
    def none(cls, neighbours: list[int], like: State) -> Flows:
        """Nothing has passed yet."""
        empty = {name: value.new_zeros((1, *value.shape[1:])) for name, value in like.items()}
        return cls(dict.fromkeys(neighbours, empty), dict.fromkeys(neighbours, FIRST))

    def add(self, neighbour: int, at: At, weight: float, theirs: State, mine: State) -> None:
        """An exchange: W_ij (b_j - b_i)."""
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: before[name] + weight * (theirs[name] - mine[name]) for name in before}
        self.last[neighbour] = at

    def adopt(self, neighbour: int, at: At, theirs: State, ratio: float) -> State:
        """Take the other end's sum for this one's.

        Args:
            neighbour: the other end, j.
            at: the last step in its sum.
            theirs: F_ji, (1, ...).
            ratio: v_j / v_i.

        Returns:
            What is to be added to the belief, (1, ...).
        """
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: -ratio * theirs[name] for name in before}
        self.last[neighbour] = at
        return {name: value - before[name] for name, value in self.sums[neighbour].items()}

    def kept(self) -> State:
        """As tensors, for a checkpoint."""
        found: State = {}
        for neighbour, sums in self.sums.items():
            found |= prefixed(f"{neighbour}", {**prefixed("sum", sums), "last": self.last[neighbour].tensor()})
        return found

    @classmethod
    def restored(cls, neighbours: list[int], kept: State) -> Flows:
        """What `kept` wrote."""
        parts = {neighbour: within(kept, f"{neighbour}") for neighbour in neighbours}
        sums = {neighbour: within(part, "sum") for neighbour, part in parts.items()}
        return cls(sums, {neighbour: At.of(part["last"]) for neighbour, part in parts.items()})
