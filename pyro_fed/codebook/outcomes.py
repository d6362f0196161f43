"""Counts of a site's events and censored rows by bins of time, which may leave it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pyro_fed.codebook.codebook import Codebook, Outcome
from pyro_fed.ops.small_counts import joined_bins


@dataclass(frozen=True, kw_only=True)
class OutcomeSummary:
    """Events and censored rows by bins of time; nothing where they are withheld.

    Attributes:
        ends: of the bins, some of the codebook's: small counts are joined with their neighbours.
        events: of each bin.
        censored: rows of each bin; in the last one also those that have no event until its end.
    """

    ends: tuple[float, ...] = ()
    events: tuple[int, ...] = ()
    censored: tuple[int, ...] = ()


def summarise_outcome(frame: pd.DataFrame, outcome: Outcome, book: Codebook) -> OutcomeSummary:
    """Counts of a site's events and censored rows by bins of time, of the rows with both; none where it lacks one."""
    here = set(frame)
    if not {outcome.time, outcome.event} <= here or not {book.columns[outcome.time].after or outcome.time} <= here:
        return OutcomeSummary()
    time, status = _times(frame, outcome, book), frame[outcome.event]
    levels = list(book.columns[outcome.event].levels)
    seen, happened = status.isin(levels).to_numpy(bool), (status == outcome.level).to_numpy(bool)
    missing = [(seen & happened & np.isnan(time)).sum(), (seen & ~happened & np.isnan(time)).sum()]
    whole = seen & ~np.isnan(time)
    place = np.searchsorted(outcome.ends, time[whole])
    beyond = place == len(outcome.ends)
    is_event = happened[whole] & ~beyond
    place = np.minimum(place, len(outcome.ends) - 1)
    cells = np.stack([np.bincount(place[which], minlength=len(outcome.ends)) for which in (is_event, ~is_event)], 1)
    rest = [int(count) for count in (*missing, (~seen & ~np.isnan(time)).sum())]
    ends = joined_bins(cells.tolist(), book.fewest) if whole.any() else None
    if ends is None or any(0 < count < book.fewest for count in rest):
        return OutcomeSummary()
    sums = np.diff(np.concatenate([np.zeros((1, 2), int), cells.cumsum(0)[np.array(ends) - 1]]), axis=0)
    return OutcomeSummary(
        ends=tuple(outcome.ends[end - 1] for end in ends),
        events=tuple(map(int, sums[:, 0])),
        censored=tuple(map(int, sums[:, 1])),
    )


def _times(frame: pd.DataFrame, outcome: Outcome, book: Codebook) -> np.ndarray:
    """The times (n,) to the event or the end of observation, NaN where they are missing; of dates in days."""
    times, begin = frame[outcome.time], book.columns[outcome.time].after
    return np.asarray((times - frame[begin]) / pd.Timedelta(days=1) if begin else times, float)
