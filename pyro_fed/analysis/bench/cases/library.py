"""The list of all cases, those of a quick benchmark, and the gallery's cases, whose references are long runs of NUTS.

A reference is stored in `references/NAME.npz` with a fingerprint of its data. It is every fourth draw of four chains of
2,000 draws in double precision. A reference whose data have changed is refused;
`python -m benchmarks.accuracy.bench_references` makes all references anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pyro_fed.analysis.bench.cases.analytic import analytic_cases, model_case, quantile_groups
from pyro_fed.analysis.bench.cases.case import Case, Column, Reference
from pyro_fed.analysis.bench.cases.posteriordb import find, has
from pyro_fed.analysis.bench.cases.stan_models import POSTERIORS
from pyro_fed.errors import DataError

REFERENCES = Path(__file__).parent / "references"


def fingerprint(args: tuple[Any, ...], digits: int = 4) -> str:
    """A digest of the data, rounded to so many decimals: another version of a library may change later ones."""
    digest = hashlib.sha256()
    for leaf in args:
        array = leaf.detach().numpy() if isinstance(leaf, Tensor) else np.asarray(leaf)
        digest.update(np.round(array.astype(np.float64), digits).tobytes() + str(array.shape).encode())
    return digest.hexdigest()[:16]


def stored_reference(name: str, args: tuple[Any, ...]) -> Reference:
    """The stored reference of a model; DataError if there is none for these data."""
    path = REFERENCES / f"{name}.npz"
    if not path.is_file():
        raise DataError(
            f"the reference of '{name}' is missing, expected the file {path}: make it by "
            f"python -m benchmarks.accuracy.bench_references {name}"
        )
    with np.load(path) as stored:
        values = {key: stored[key].astype(float) for key in stored.files if key != "data"}
        of = str(stored["data"])
    if of != fingerprint(args):
        raise DataError(
            f"the reference of '{name}' was made for other data (fingerprint {of}, expected {fingerprint(args)}): "
            f"make it again by python -m benchmarks.accuracy.bench_references {name}"
        )
    return Reference(values, False, "NUTS, 4 chains of 2,000 on the pooled data")


class SameRowsCase(NamedTuple):
    """A model in which all arguments have the same rows.

    Attributes:
        about: a description in a few words.
        sort_by: number of the argument by which rows are sorted; for a matrix, by the sums of its rows.
        labels: number of the argument whose values a split by labels uses; for a matrix, the sums of its rows.
    """

    about: str
    sort_by: int
    labels: int


PLAIN = {
    "weibull_survival": SameRowsCase("survival times, of which some are censored", 2, 1),
    "negative_binomial": SameRowsCase("counts over different exposures, with a concentration", 2, 2),
    "zero_inflated": SameRowsCase("counts with more zeros than Poisson's", 1, 1),
    "ordinal_regression": SameRowsCase("five ordered answers, with four cut points", 1, 1),
    "robust_regression": SameRowsCase("Student's t with learnt degrees of freedom, one row in twelve an outlier", 1, 1),
    "hidden_markov": SameRowsCase("40 subjects with two hidden states, which are summed out", 0, 0),
    "capture_recapture": SameRowsCase("survival and detection of ringed birds by sex", 0, 1),
    "gaussian_process": SameRowsCase("growth curves of 30 children with common hyperparameters", 1, 1),
    "item_response": SameRowsCase(
        "8 items' difficulty and discrimination; each person's ability stays with the client", 0, 0
    ),
    "measurement_error": SameRowsCase("a covariate measured with error, its true values with their rows", 0, 1),
    "missing_covariate": SameRowsCase("a covariate that is missing in some rows, imputed there", 0, 2),
    "regularised_horseshoe": SameRowsCase("sparse logistic regression with a prior of funnels", 0, 2),
}


def gallery_cases() -> list[Case]:
    """The cases of the gallery: its models with stored references."""
    return [
        _case(
            "logistic_regression",
            "31 weights and their prior's precision, which is skewed (breast cancer data)",
            sort_by=lambda args: args[0][:, 0],
            labels=lambda args: args[1],
            groups=lambda args: quantile_groups(args[0][:, 3]),
        ),
        _case(
            "hierarchical_logistic",
            "12 hospitals, whose levels stay where they are: rows are hospitals",
            sort_by=lambda args: np.bincount(args[1].numpy()),
            labels=lambda args: np.bincount(args[1].numpy()),
            groups=lambda args: np.arange(args[2]),
        ),
        _case(
            "gaussian_mixture",
            "two components in one dimension; each row's component is summed out",
            sort_by=lambda args: args[0],
            labels=lambda args: args[0],
        ),
        _case(
            "varying_slopes",
            "18 subjects with correlated intercepts and slopes: rows are subjects",
            sort_by=lambda args: np.bincount(args[1].numpy(), args[3].numpy()),
            labels=lambda args: np.bincount(args[1].numpy(), args[3].numpy()),
            groups=lambda args: np.arange(args[2]),
        ),
        *(_case(name, case.about, _argument(case.sort_by), _argument(case.labels)) for name, case in PLAIN.items()),
    ]


def _case(name: str, about: str, sort_by: Column, labels: Column, groups: Column | None = None) -> Case:
    """A case whose reference is stored."""
    return model_case(name, "gallery", about, lambda args: stored_reference(name, args), sort_by, labels, groups)


def _argument(number: int) -> Column:
    """A function that reads an argument as a column; of a matrix, the sums of its rows."""
    return lambda args: args[number].double().reshape(len(args[number]), -1).sum(1)


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
