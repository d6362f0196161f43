"""Suppression of small counts, so that they do not leave a site and do not follow from the counts that do."""

from __future__ import annotations

from collections.abc import Sequence


def withheld_cells(counts: Sequence[int], fewest: int) -> set[int]:
    """The withheld cells, of cells whose sum is known.

    They are the small cells, and the smallest others until at least two are withheld and their sum is large enough. The
    sum follows from the other cells; each withheld cell then has several possible values.
    """
    hidden = {i for i, count in enumerate(counts) if 0 < count < fewest}
    others = sorted((count, i) for i, count in enumerate(counts) if count >= fewest)
    while hidden and (len(hidden) < 2 or sum(counts[i] for i in hidden) < fewest) and others:
        hidden.add(others.pop(0)[1])
    return hidden if sum(counts[i] for i in hidden) >= fewest or not hidden else set(range(len(counts)))


def joined_bins(cells: Sequence[Sequence[int]], fewest: int) -> list[int] | None:
    """The ends of joined neighbouring bins whose cells are all empty or large enough; None if this is impossible.

    From the first bin on, bins are joined until all cells are large enough. The remaining bins join those before.

    Args:
        cells: counts of each bin, (bins, cells).
        fewest: the smallest count that is large enough.

    Returns:
        One past the number of each joined bin's last bin.

    Example:
        >>> joined_bins([[5, 0], [1, 7], [6, 9], [2, 8]], 5)
        [1, 4]
    """

    def is_large(start: int, end: int) -> bool:
        return all(sum(column) == 0 or sum(column) >= fewest for column in zip(*cells[start:end], strict=True))

    ends = [0]
    for end in range(1, len(cells) + 1):
        if is_large(ends[-1], end):
            ends.append(end)
    while ends and not is_large(ends[-1], len(cells)):
        ends.pop()
    return [*ends[1:], len(cells)] if ends and ends[-1] < len(cells) else ends[1:] or None
