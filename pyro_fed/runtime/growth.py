"""Whether a point, particles or chains grow without end. Such a run is ended before its numbers overflow.

Steps that are too long multiply a place by about the same factor in every round. If the factor is near one, the place
stays finite for thousands of rounds: at 1.07 a round it is at 10^147 after 5,000. So a state counts as lost when it has
grown by a constant factor over the whole of the last half of the rounds, and so far that double precision holds nothing
of where it began. A place that jumps once, because the data have a large unit, stays there. One that is large because
of heavy tails does not go on by the same factor. Precisions, dampings and step sizes are not looked at: they may grow
and be right, as where an optimisation stands still. Nor is a state that another phase only starts from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.errors import DivergenceError

#: Entries of a server's state that are places, in the model's coordinates.
PLACES = ("point", "particles", "position")
#: The state is looked at this often while rounds double, from `FIRST` on; the last so many intervals are judged.
LOOKS = 4
FIRST = 8
#: A state that grows without end does so by at least this factor between any two of those looks: faster than the sixth
#: power of the rounds.
FACTOR = 3.0
#: And by this factor in all: of where it began, or of one, nothing is left in double precision.
GROWN = 1 / torch.finfo(torch.float64).eps
#: The same at the end of the rounds, where nothing is to come that could bring it back: half of the digits are left.
GROWN_AT_END = GROWN**0.5


@dataclass
class Growth:
    """The largest magnitudes of a state, by its entries, at geometrically spaced rounds.

    Attributes:
        first: of the state that the phase began with, or was resumed at; at least one.
        seen: of the last looks, the oldest first.
        next: rounds at which the state is looked at again.
    """

    first: dict[str, float] = field(default_factory=dict)
    seen: list[dict[str, float]] = field(default_factory=list)
    next: int = FIRST

    def look(self, algorithm: Algorithm, shared: State, done: int, rounds: int, record: Record) -> None:
        """Look at the state after `done` of a phase's `rounds`, where it is time to.

        Raises:
            DivergenceError: an entry has grown by a constant factor for half of the rounds; it keeps the state.
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
        """Take the state that the rounds begin with."""
        self.first = {name: max(1.0, size) for name, size in _sizes(shared).items()}


def _sizes(shared: State) -> dict[str, float]:
    """The largest magnitude of each entry that is a place."""
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
