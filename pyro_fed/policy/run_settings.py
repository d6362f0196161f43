"""The choices of `run` itself: threads, and the number of draws."""

from __future__ import annotations

from pyro_fed.density.traits import LARGE_DIM, Traits

#: Numbers that all draws of a large model may have together: 160 MB in double precision.
DRAWN_NUMBERS = 20_000_000
#: Rows × parameters from which on a pass over them is worth several threads: some 0.5 ms on one. Below, threads wait
#: for one another longer than they work.
THREADED_NUMBERS = 1_000_000
#: Draws that a result has at least.
FEWEST_DRAWS = 10


def threads_of(traits: Traits) -> int | None:
    """Threads for "auto": one, or torch's own number if a pass over the rows is long enough."""
    return None if traits.num_rows * traits.dim >= THREADED_NUMBERS else 1


def affordable_draws(traits: Traits, wanted: int, chains: int) -> int:
    """The wanted number of draws of a chain, or as many as `DRAWN_NUMBERS` has room for if the model is large."""
    if traits.dim <= LARGE_DIM:
        return wanted
    return max(1, min(-(-wanted // chains), max(FEWEST_DRAWS, DRAWN_NUMBERS // traits.dim // chains)))
