"""The codebook of a study: checks of the sites' tables before any run, at each site and between sites.

    book = pf.codebook.read_codebook("codebook.toml")
    checked = pf.codebook.check(book, "albany.csv")         at the site: findings with the numbers of rows
    checked.summary.write("albany.json")                    what may leave the site

    summaries = [pf.codebook.read_summary(f"{name}.json") for name in names]
    pf.codebook.compare(summaries)                          other units, exchanged levels, shifted dates
    pf.codebook.constants(summaries).write("constants.json")    pooled means and SDs, for every model
    pf.codebook.table_one(summaries).to_markdown()
    pf.codebook.kaplan_meier(summaries)                     curves by site and overall

codebook         the TOML file and its entries
rows, units      a site's table, the codebook as pandera's schema, and what units and dates are taken for each other
at_site          `check` and `read_rows`: what a table contradicts
summary          what may leave: the rules on small counts
between_sites    summaries beside each other
pooling          pooled means and SDs, and Table 1
survival         Kaplan-Meier curves
sentences        the texts of all findings
"""

from pyro_fed.codebook.at_site import SiteCheck, SiteFinding, check, read_rows
from pyro_fed.codebook.between_sites import compare
from pyro_fed.codebook.codebook import Codebook, Column, Outcome, Site, read_codebook
from pyro_fed.codebook.pooling import Constants, Moments, TableOne, constants, read_constants, table_one
from pyro_fed.codebook.rows import schema
from pyro_fed.codebook.summary import (
    CategorySummary,
    NumberSummary,
    OutcomeSummary,
    Relation,
    SiteSummary,
    read_summary,
)
from pyro_fed.codebook.survival import SurvivalTable, kaplan_meier
from pyro_fed.conventions.doors import public_dir

__all__ = [
    "CategorySummary",
    "Codebook",
    "Column",
    "Constants",
    "Moments",
    "NumberSummary",
    "Outcome",
    "OutcomeSummary",
    "Relation",
    "Site",
    "SiteCheck",
    "SiteFinding",
    "SiteSummary",
    "SurvivalTable",
    "TableOne",
    "check",
    "compare",
    "constants",
    "kaplan_meier",
    "read_codebook",
    "read_constants",
    "read_rows",
    "read_summary",
    "schema",
    "table_one",
]
__dir__ = public_dir(__all__)
