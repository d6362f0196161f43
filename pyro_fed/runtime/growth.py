"""Divergence that is noticed before numbers overflow: a point, particles or chains that grow without end.

Steps that are too long multiply a position by about the same factor in every round. If the factor is near one, the
position stays finite for thousands of rounds: with 1.07 a round it is 10^147 after 5,000. So a run is ended if a
position has grown by a constant factor over the whole last half of the rounds, and so far that nothing of its first
value is left in double precision. A position that jumps once, because the data have a large unit, does not grow
further. One that is large because of heavy tails does not grow by the same factor again and again. Precisions, dampings
and step sizes are not looked at, since they may rightly grow. Nor are the states of phases from which another phase
starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.errors import DivergenceError

#: Entries of a server's state that are positions in the model's coordinates.
PLACES = ("point", "particles", "position")
#: From round `FIRST_LOOK` on the state is looked at `LOOKS` times while the number of rounds doubles; the last `LOOKS`
#: intervals are judged, which is the last half of the rounds.
LOOKS = 4
FIRST_LOOK = 8
#: Smallest growth between two looks of a state that grows without end: faster than the sixth power of the rounds.
FACTOR = 3.0
#: Smallest growth in all: nothing is left of the first value, or of one, in double precision.
GROWN = 1 / torch.finfo(torch.float64).eps
#: Smallest growth in all at the end of the rounds, after which nothing can bring the state back: half of the digits.
GROWN_AT_END = GROWN**0.5


@dataclass
class Growth:
    """The largest magnitude of each entry of a state, at geometrically spaced rounds.

    Attributes:
        first: magnitudes when the phase began, or was resumed; at least one.
        seen: magnitudes at the last looks, the oldest first.
        next: number of rounds after which the state is looked at again.
    """

    first: dict[str, float] = field(default_factory=dict)
    seen: list[dict[str, float]] = field(default_factory=list)
    next: int = FIRST_LOOK

    def look(self, algorithm: Algorithm, shared: State, done: int, rounds: int, record: Record) -> None:
        """Look at the state, if it is due, `done` of `rounds` rounds into the phase.

        Raises:
            DivergenceError: an entry has grown by a constant factor for half of the rounds. The error keeps the state.
        """
        end = done >= rounds or bool(record.converged)
        if done < self.next and not end:
            return
        if done >= self.next:
            self.seen = [*self.seen, _sizes(shared)][-LOOKS - 1 :]
            while self.next <= done:
                self.next = max(self.next + 1, round(self.next * 2 ** (1 / LOOKS)))
        if len(self.seen) <= LOOKS:
            return
        limit = GROWN_AT_END if end else GROWN
        for name, size in self.seen[-1].items():
            sizes = [look.get(name, 0.0) for look in self.seen]
            steady = all(after >= FACTOR * before > 0 for before, after in pairwise(sizes))
            if steady and size >= limit * self.first.get(name, 1.0):
                raise _grown(algorithm, shared, name, sizes, len(record.rounds) - 1, record)

    def begin(self, shared: State) -> None:
        """Note the magnitudes of the state with which the rounds begin."""
        self.first = {name: max(1.0, size) for name, size in _sizes(shared).items()}


def _sizes(shared: State) -> dict[str, float]:
    """The largest magnitude of each entry that is a position."""
    sizes = {name: float(shared[name].abs().max()) for name in PLACES if name in shared and shared[name].numel()}
    return {name: size for name, size in sizes.items() if size < torch.inf}


def _grown(
    algorithm: Algorithm, state: State, name: str, sizes: list[float], round: int, record: Record
) -> DivergenceError:
    cure = record.moved_first() or (
        "the step was too long. Take a smaller step, or give parameters of very different scales a common one"
    )
    unlike = record.unlike()
    error = DivergenceError(
        f"{type(algorithm).__name__}, round {round}: the server's '{name}' grows without end, from {sizes[0]:.3g} to "
        f"{sizes[-1]:.3g} in the last half of the rounds: {cure}. {unlike + '. ' if unlike else ''}"
        "This state is kept in this error's `state`",
        round=round,
    )
    error.algorithm, error.state = algorithm, state
    return error
