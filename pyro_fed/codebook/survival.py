"""Kaplan-Meier curves by site and overall, from counts of events and censored rows by bins of time.

Times are rounded up to the end of their bin (a, b], events before censored rows, as Kaplan and Meier order ties:

    S(b_j) = Π_{i ≤ j} (1 - d_i / n_i),    n_i = n - Σ_{h < i} (d_h + c_h)

with d_i events, c_i censored rows and n_i rows at risk in bin i. Where each distinct time has a bin of its own this is
the curve of the rows; wider bins count rows that are censored within a bin as at risk to its end. The limits are those
of log(-log S) with Greenwood's variance (Kalbfleisch & Prentice 2002, The Statistical Analysis of Failure Time Data):

    log(-log S) ± z sqrt(Σ_{i ≤ j} d_i / (n_i (n_i - d_i))) / log S

A site joins neighbouring bins until each has no event, or `fewest`, and the same of censored rows (`joined_bins`). The
curve of all sites is at the times at which each site's joined bins end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd

from pyro_fed.codebook.between_sites import check_together
from pyro_fed.codebook.codebook import Codebook
from pyro_fed.codebook.summary import OutcomeSummary, SiteSummary
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL, closest
from pyro_fed.errors import DataError, listed


@dataclass(frozen=True)
class SurvivalTable:
    """Kaplan-Meier curves, see `kaplan_meier`.

    Attributes:
        outcome: its name in the codebook.
        unit: of the times.
        frame: a row for each site, or "overall", and time: `at_risk` before the bin that ends at the time, `events` and
            `censored` in it, `survival` at its end, and `lower` and `upper`, its 95 % limits.
        notes: which sites are not in the curve of all, and why.
    """

    outcome: str
    unit: str
    frame: pd.DataFrame
    notes: tuple[str, ...]


@checked
def kaplan_meier(summaries: Sequence[SiteSummary], outcome: str | None = None) -> SurvivalTable:
    """Kaplan-Meier curves of each site and of all sites together.

    Args:
        summaries: of the sites.
        outcome: the name of an outcome of the codebook, `[outcomes.NAME]`, if there are several.

    Returns:
        The curves as a table; `pf.plots.plot_kaplan_meier` draws it. A site that withholds its counts is in the notes.

    Raises:
        DataError: the codebook has no such outcome; no site has a curve; there are no summaries, two of one site, one
            called "overall", or some by another codebook.

    References:
        Kaplan & Meier (1958), *Nonparametric estimation from incomplete observations*.

    Example:
        >>> curves = pf.codebook.kaplan_meier(summaries)
        >>> curves.frame.query("site == 'overall'")[["time", "survival", "lower", "upper"]]
    """
    check_together(summaries)
    book = summaries[0].codebook
    name = _outcome(book, outcome)
    parts = {one.site: one.outcomes[name] for one in summaries if name in one.outcomes and one.outcomes[name].ends}
    if not parts:
        raise DataError(f"kaplan_meier: no site has counts of {name!r}: each has too few events or censored rows")
    common = [end for end in book.outcomes[name].ends if all(end in part.ends for part in parts.values())]
    frames = {site: _curve([part], part.ends) for site, part in parts.items()}
    frames[OVERALL] = _curve(list(parts.values()), common)
    notes = []
    if absent := [one.site for one in summaries if one.site not in parts]:
        notes.append(f"Without {listed(absent)}: too few events or censored rows, or no such columns.")
    if len(common) < max(len(part.ends) for part in parts.values()):
        notes.append(f"{OVERALL}: at the times at which every site's bins end, which join small counts.")
    frame = pd.concat([one.assign(site=site) for site, one in frames.items()], ignore_index=True)
    column = book.columns[book.outcomes[name].time]
    unit = "days" if column.type == "date" else column.unit
    return SurvivalTable(name, unit, frame[["site", *frame.columns[:-1]]], tuple(notes))


def _outcome(book: Codebook, name: str | None) -> str:
    if name is None and len(book.outcomes) == 1:
        return next(iter(book.outcomes))
    if name is None:
        raise DataError(f"kaplan_meier: the codebook has the outcomes {listed(book.outcomes) or 'none'}: name one")
    if name not in book.outcomes:
        raise DataError(f"kaplan_meier: the codebook has no outcome {name!r}; {closest(name, book.outcomes)}")
    return name


def _curve(parts: Sequence[OutcomeSummary], ends: Sequence[float]) -> pd.DataFrame:
    """The curve of some sites' rows together, at times at which each site has a bin that ends."""
    places = [[one.ends.index(end) for end in ends] for one in parts]
    events, censored = (
        np.sum([np.diff(np.cumsum(own)[at], prepend=0) for own, at in zip(counts, places, strict=True)], axis=0)
        for counts in ([one.events for one in parts], [one.censored for one in parts])
    )
    at_risk = events.sum() + censored.sum() - np.concatenate([[0], np.cumsum(events + censored)[:-1]])
    n = np.maximum(at_risk, 1)
    survival = np.cumprod(1 - events / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.sqrt(np.cumsum(np.where(events > 0, events / (n * (n - events)), 0.0)))
        spread = NormalDist().inv_cdf(0.975) * greenwood / np.log(survival)
        lower, upper = survival ** np.exp(-spread), survival ** np.exp(spread)
    known = (survival > 0) & (survival < 1)
    return pd.DataFrame(
        {
            "time": np.asarray(ends, float),
            "at_risk": at_risk,
            "events": events,
            "censored": censored,
            "survival": survival,
            "lower": np.where(known, lower, survival),
            "upper": np.where(known, upper, survival),
        }
    )
