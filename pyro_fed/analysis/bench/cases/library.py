"""All cases, and those of a quick look."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyro_fed.analysis.bench.cases.analytic import analytic_cases
from pyro_fed.analysis.bench.cases.case import Case
from pyro_fed.analysis.bench.cases.gallery import gallery_cases
from pyro_fed.analysis.bench.cases.posteriordb import POSTERIORS, find, has

#: Splits that every case is tried with, as far as it has the rows.
SPLITS = (
    *("iid/10", "sorted/10", "dirichlet:0.3/10", "group/10"),
    *("sorted/2", "sorted/100", "iid/2", "iid/100"),
)
#: What `--quick` runs: one split a case, none of which needs a file from elsewhere.
QUICK: Mapping[str, str] = {
    "gaussian_covariance": "sorted/2",
    "linear_regression": "sorted/2",
    "beta_bernoulli": "sorted/10",
    "normal_gamma": "iid/2",
    "gaussian_mixture_1d": "iid/2",
}


def all_cases(posteriordb: Path | None = None) -> dict[str, Case]:
    """Every case whose data are here, by name.

    Args:
        posteriordb: folder of posteriordb; `$PYRO_FED_DATA/posteriordb` by default.
    """
    folder = find(posteriordb)
    found = [*analytic_cases(), *gallery_cases()]
    if folder is not None:
        found += [one.case(name, folder) for name, one in POSTERIORS.items() if has(folder, one.full_name)]
    return {case.name: case for case in found}


def missing_cases(posteriordb: Path | None = None) -> list[str]:
    """Cases whose data are not here.

    Args:
        posteriordb: as in `all_cases`.
    """
    folder = find(posteriordb)
    return [name for name, one in POSTERIORS.items() if folder is None or not has(folder, one.full_name)]
