"""Pooled means and SDs of the sites' columns, from their summaries: the constants by which every model scales them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal

import pandas as pd
import torch

from pyro_fed.codebook.at_site import SiteFinding
from pyro_fed.codebook.between_sites import check_together, compare
from pyro_fed.codebook.plain import from_json, to_json
from pyro_fed.codebook.summary import NumberSummary, SiteSummary
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.conventions.output import write_file
from pyro_fed.errors import DataError, listed, warn_user
from pyro_fed.federation.standardise import ColumnSums, pooled_moments

FORMAT: Final = "pyro_fed constants 1"
#: Findings after which a site has no values of the column.
NO_VALUES = ("column_absent", "column_empty")
#: Suspicions that leave a column out, unless it is asked for by name.
OTHER_UNITS = ("scale_differs", "distribution_differs", "decimals_differ")


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Number, mean and SD (with n) of a column's values at all sites that have it."""

    n: int
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Pooled means and SDs, see `constants`.

    Attributes:
        study: the codebook's.
        sites: whose tables are pooled.
        columns: moments by column.
        left_out: columns of numbers without, and why.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    format: Literal["pyro_fed constants 1"]
    study: str = ""
    sites: tuple[str, ...] = ()
    columns: dict[str, Moments] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def standardise(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A copy of a table with its columns of numbers minus the pooled mean, divided by the pooled SD.

        Args:
            frame: of `read_rows`; columns without constants stay.

        Raises:
            DataError: none of the table's columns has constants.
        """
        known = [name for name in frame if name in self.columns]
        if not known:
            raise DataError(f"standardise: the table has none of the columns with constants, {listed(self.columns)}")
        of = self.columns
        return frame.assign(**{name: (frame[name] - of[name].mean) / of[name].sd for name in known})

    def write(self, path: str | Path) -> Path:
        """Write the constants as a JSON file, which every site's `load_rows` can read.

        Args:
            path: of the file, which is replaced if there is one.

        Returns:
            The path.

        Raises:
            SettingError: the file cannot be written.
        """
        return write_file(path, to_json(self))


@checked
def read_constants(path: str | Path) -> Constants:
    """Read pooled means and SDs.

    Args:
        path: of a JSON file that `Constants.write` or `pyro-fed check --compare --constants` has written.

    Raises:
        DataError: the file cannot be read, or is not such a file.

    Example:
        >>> frame = pf.codebook.read_constants("constants.json").standardise(frame)
    """
    return from_json(Constants, Path(path))


@checked
def constants(summaries: Sequence[SiteSummary], columns: Sequence[str] | None = None) -> Constants:
    """Pooled mean and SD of columns of numbers, as `pooled_moments` gives them for the pooled rows.

    Args:
        summaries: of the sites.
        columns: whose; by default all columns of numbers that can be pooled. `Constants.left_out` has the others: a
            site withholds their mean, its values contradict the codebook, or they may be in another unit.

    Raises:
        DataError: a column that is asked for cannot be pooled, with the site; there are no summaries, two of one site,
            or some by another codebook.

    Example:
        >>> path = pf.codebook.constants(summaries, ["age", "weight"]).write("constants.json")
    """
    check_together(summaries)
    book = summaries[0].codebook
    numbers = [name for name, column in book.columns.items() if column.has_moments]
    if unknown := [name for name in columns or () if name not in numbers]:
        raise DataError(f"constants: {unknown[0]!r} is not a column of numbers; {closest(unknown[0], numbers)}")
    doubted, suspected = _reasons(summaries)
    moments, left_out = {}, {}
    for name in numbers if columns is None else columns:
        parts = {one.site: one.numbers[name] for one in summaries if name in one.numbers}
        withheld = [site for site, part in parts.items() if part.withholds]
        reason = doubted.get(name) or (f"withheld by {listed(withheld)}" if withheld else "")
        if not any(part.n for part in parts.values()):
            reason = reason or "no site has values"
        if reason and columns is not None:
            raise DataError(f"constants: {name} cannot be pooled: {reason}. Mend the table, or leave the column out")
        if name in suspected and columns is not None:
            warn_user(f"constants: {name} is pooled although {suspected[name]}")
        elif not reason:
            reason = suspected.get(name, "")
        if reason:
            left_out[name] = reason
        else:
            moments[name] = pooled([part for part in parts.values() if part.n])
    sites = tuple(one.site for one in summaries)
    return Constants(format=FORMAT, study=book.study, sites=sites, columns=moments, left_out=left_out)


def _reasons(summaries: Sequence[SiteSummary]) -> tuple[dict[str, str], dict[str, str]]:
    """By column, the first finding that contradicts the codebook, and the first that suspects another unit."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    alone = [SiteFinding(one.site, finding) for one in summaries for finding in one.as_findings()]
    for one in compare(summaries) if len(summaries) > 1 else alone:
        finding = one.finding
        if (finding.is_doubt and finding.code not in NO_VALUES) or finding.code in OTHER_UNITS:
            found[not finding.is_doubt].setdefault(
                str(finding.where.get("column", "")), f"at {one.site}, {finding.text}"
            )
    return found


def pooled(parts: Sequence[NumberSummary]) -> Moments:
    """The moments of all sites' values of a column, from those of each."""
    sums = [
        ColumnSums(
            torch.tensor(float(part.n or 0), dtype=torch.float64),
            torch.tensor([part.mean], dtype=torch.float64),
            torch.tensor([(part.sd or 0.0) ** 2 * ((part.n or 0) - 1)], dtype=torch.float64),
        )
        for part in parts
    ]
    mean, sd = pooled_moments(sums)
    return Moments(n=sum(part.n or 0 for part in parts), mean=float(mean), sd=float(sd))
