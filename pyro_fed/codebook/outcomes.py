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
    """Counts of a site's events and censored rows by bins of time, of the rows with both; none where it lacks one.

    The rows of each level are known. So events after the last end are counted apart from the other rows of the last
    bin, and the rows without time, level or both are withheld like those of a bin.
    """
    if not {outcome.time, outcome.event, book.columns[outcome.time].after or outcome.time} <= set(frame):
        return OutcomeSummary()
    time, status = _times(frame, outcome, book), frame[outcome.event]
    has_time, has_level = ~np.isnan(time), status.isin(list(book.columns[outcome.event].levels)).to_numpy(bool)
    has_event = (status == outcome.level).to_numpy(bool)
    complete = has_time & has_level
    place, is_event = np.searchsorted(outcome.ends, time[complete]), has_event[complete]
    is_later = place == len(outcome.ends)
    kinds = (is_event & ~is_later, ~is_event, is_event & is_later)
    place = np.minimum(place, len(outcome.ends) - 1)
    cells = np.stack([np.bincount(place[kind], minlength=len(outcome.ends)) for kind in kinds], 1)
    incomplete = [(which & ~has_time).sum() for which in (has_event, has_level & ~has_event, ~has_level)]
    incomplete.append((~has_level & has_time).sum())
    ends = joined_bins(cells.tolist(), book.fewest) if complete.any() else None
    if ends is None or any(0 < count < book.fewest for count in incomplete):
        return OutcomeSummary()
    sums = np.diff(np.concatenate([np.zeros((1, 3), int), cells.cumsum(0)[np.array(ends) - 1]]), axis=0)
    return OutcomeSummary(
        ends=tuple(outcome.ends[end - 1] for end in ends),
        events=tuple(map(int, sums[:, 0])),
        censored=tuple(map(int, sums[:, 1:].sum(1))),
    )


def _times(frame: pd.DataFrame, outcome: Outcome, book: Codebook) -> np.ndarray:
    """The times (n,) to the event or the end of observation, NaN where they are missing; of dates in days."""
    times, begin = frame[outcome.time], book.columns[outcome.time].after
    return np.asarray((times - frame[begin]) / pd.Timedelta(days=1) if begin else times, float)
