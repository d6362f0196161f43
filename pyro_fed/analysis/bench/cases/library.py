"""The list of all cases, and of the cases of a quick benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyro_fed.analysis.bench.cases.analytic import analytic_cases
from pyro_fed.analysis.bench.cases.case import Case
from pyro_fed.analysis.bench.cases.gallery import gallery_cases
from pyro_fed.analysis.bench.cases.posteriordb import find, has
from pyro_fed.analysis.bench.cases.stan_models import POSTERIORS

#: The default splits; a case is left out of splits for which it has too few rows or groups.
SPLITS = (
    *("iid/10", "sorted/10", "dirichlet:0.3/10", "group/10"),
    *("sorted/2", "sorted/100", "iid/2", "iid/100"),
)
#: The cases of a quick benchmark, with one split each. None needs data from elsewhere.
QUICK: Mapping[str, str] = {
    "gaussian_covariance": "sorted/2",
    "linear_regression": "sorted/2",
    "beta_bernoulli": "sorted/10",
    "normal_gamma": "iid/2",
    "gaussian_mixture_1d": "iid/2",
}


def all_cases(posteriordb: Path | None = None) -> dict[str, Case]:
    """All cases whose data are available, by name; posteriordb lies in `$PYRO_FED_DATA/posteriordb` by default."""
    folder = find(posteriordb)
    found = [*analytic_cases(), *gallery_cases()]
    if folder is not None:
        found += [one.case(name, folder) for name, one in POSTERIORS.items() if has(folder, one.full_name)]
    return {case.name: case for case in found}


def missing_cases(posteriordb: Path | None = None) -> list[str]:
    """Names of the cases whose data are missing."""
    folder = find(posteriordb)
    return [name for name, one in POSTERIORS.items() if folder is None or not has(folder, one.full_name)]
