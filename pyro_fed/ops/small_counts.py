"""Which counts are withheld, so that small ones do not leave a site, and do not follow from those that leave."""

from __future__ import annotations

from collections.abc import Sequence


def withheld_cells(counts: Sequence[int], fewest: int) -> set[int]:
    """The cells that are withheld, of cells whose sum is known.

    With the small ones go the smallest others, until there are two and their sum, which follows from the other
    cells, is large enough for each of them to have several possible values.
    """
    hidden = {i for i, count in enumerate(counts) if 0 < count < fewest}
    others = sorted((count, i) for i, count in enumerate(counts) if count >= fewest)
    while hidden and (len(hidden) < 2 or sum(counts[i] for i in hidden) < fewest) and others:
        hidden.add(others.pop(0)[1])
    return hidden if sum(counts[i] for i in hidden) >= fewest or not hidden else set(range(len(counts)))
