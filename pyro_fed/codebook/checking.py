"""`check` and `read_rows`: a site's table against the codebook, at the site."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from pyro_fed.codebook.at_site import SiteFinding, findings_of
from pyro_fed.codebook.codebook import Codebook
from pyro_fed.codebook.plain import check_installed
from pyro_fed.codebook.rows import read_table
from pyro_fed.codebook.summary import SiteSummary, summarise
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import check_shown_name
from pyro_fed.errors import DataError, SettingError, listed


@dataclass(frozen=True)
class SiteCheck:
    """What `check` returns.

    Attributes:
        findings: what speaks against the table, with the numbers of its rows: for the site alone.
        summary: what may leave the site.
    """

    findings: list[SiteFinding]
    summary: SiteSummary


@checked
def check(codebook: Codebook, rows: str | Path | pd.DataFrame, site: str = "", fewest: int | None = None) -> SiteCheck:
    """Check a site's table against the codebook, and summarise what may leave the site.

    Args:
        codebook: of `read_codebook`.
        rows: the path of a CSV file, or a data frame.
        site: the site's name; by default that of the file.
        fewest: the least number of rows about which a figure may leave, if the site wants more than the codebook's.

    Returns:
        Findings with the numbers of rows, for the site's own eyes, and a summary that has no row's value.

    Raises:
        DataError: the file cannot be read.
        SettingError: the extra `study` is not installed, or `fewest` is smaller than the codebook's.
        ProtocolError: the site has no name, as of a data frame, or one that is no plain name.

    Example:
        >>> checked = pf.codebook.check(book, "albany.csv")
        >>> for one in checked.findings:
        ...     print(one.finding.text, one.rows)
        >>> path = checked.summary.write("albany.json")
    """
    check_installed()
    site = site or (Path(rows).stem if not isinstance(rows, pd.DataFrame) else "")
    check_shown_name(site)
    if fewest is not None:
        if fewest < codebook.fewest:
            raise SettingError(f"check: fewest must be at least the codebook's, {codebook.fewest}; received {fewest}")
        codebook = replace(codebook, fewest=fewest)
    table = read_table(rows)
    findings, data = findings_of(table, codebook, site)
    return SiteCheck(findings, summarise(data.frame, codebook, site, [one.finding for one in findings]))


@checked
def read_rows(codebook: Codebook, rows: str | Path | pd.DataFrame, site: str = "") -> pd.DataFrame:
    """A site's table in the codebook's types, as a model takes it.

    Categories have the codebook's levels in the codebook's order at every site, missing codes are missing values, dates
    are dates. Columns that the codebook does not have are left out.

    Args:
        codebook: of `read_codebook`.
        rows: the path of a CSV file, or a data frame.
        site: the site's name; by default that of the file.

    Raises:
        DataError: the table contradicts the codebook; `check` says where.
        SettingError: the extra `study` is not installed.

    Example:
        >>> frame = pf.codebook.read_rows(book, "albany.csv")
        >>> list(frame["sex"].cat.categories)
        ['male', 'female']
    """
    check_installed()
    site = site or (Path(rows).stem if not isinstance(rows, pd.DataFrame) else "")
    findings, data = findings_of(read_table(rows), codebook, site)
    doubts = [one.finding for one in findings if one.finding.is_doubt]
    if doubts:
        raise DataError(
            f"read_rows: the table of {site or 'this site'} contradicts the codebook: "
            f"{listed(one.text for one in doubts)}. pyro-fed check shows the rows"
        )
    frame = data.frame
    for name in codebook.of_type("category"):
        if name in frame:
            column = codebook.columns[name]
            frame[name] = pd.Categorical(frame[name], categories=list(column.levels), ordered=column.ordered)
    return frame
