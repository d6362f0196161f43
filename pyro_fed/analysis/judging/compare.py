"""One table of several results: how close to a reference, how good at predicting, how dear, how doubtful."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.judging import distances, doubts, metrics
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.ksd import ksd
from pyro_fed.analysis.judging.laplace_sds import laplace_sds
from pyro_fed.analysis.judging.tables import Column, Table
from pyro_fed.analysis.numbers import digits, percent, readable_bytes, readable_seconds
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.importance import LARGEST_PARETO_K
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data, unconstrained_draws

#: Draws at which scores are taken, evenly spaced.
DRAWS_FOR_KSD = 400
#: PSIS needs a tail to fit.
FEWEST_DRAWS_FOR_LOO = 25
#: Above, the Hessian costs more than the check is worth.
LARGEST_DIM_FOR_LAPLACE = 300

#: How to read the tables.
CLOSENESS = """
Mean error: the largest error of a posterior mean, in SDs of the reference; a good result is below about
0.2. SD ratio: the smallest and largest posterior SD over the reference's; 1 is right, below 1
overconfident. Sliced Wasserstein distance and MMD² are zero for equal distributions. KSD measures the
distance to the model's own density, without the reference; it is unbiased, so that it may be slightly
negative. Prior count: how often the result has counted the prior (± one standard error); 1 is right.
"""
PREDICTIONS = """
ELPD: expected log density of a new row for each training row, summed, by PSIS-LOO, with its standard error;
with many rows of a large Pareto k it is not reliable. The rest is measured on the test data. ECE and MCE
are the average and the largest gap between confidence and accuracy.
"""
COSTS = """
Bytes of all clients together. The reference works on the pooled data and sends nothing. Seconds are those
of the simulation in one process.
"""

#: All columns but the warnings, in the order in which they are shown. A new one is added here, to what `compare` says
#: it returns, and by a function of this file that measures it.
TABLES = (
    Table(
        "How close to the reference",
        CLOSENESS,
        {
            "mean_error": Column("mean error", digits(2)),
            "sd_ratio_min": Column("SD ratio, least", digits(2)),
            "sd_ratio_max": Column("SD ratio, largest", digits(2)),
            "sliced_wasserstein": Column("sliced Wasserstein", digits(2)),
            "mmd2": Column("MMD²", digits(3)),
            "ksd": Column("KSD", digits(3)),
            "prior_count": Column("prior count", digits(2)),
            "prior_count_se": Column("±", digits(2)),
        },
    ),
    Table(
        "How good at predicting",
        PREDICTIONS,
        {
            "elpd_loo": Column("ELPD (LOO)", digits(1)),
            "elpd_loo_se": Column("± SE", digits(1)),
            "bad_pareto_k": Column(f"rows with Pareto k > {LARGEST_PARETO_K}", digits(0)),
            "test_log_density": Column("test log density a row", digits(3)),
            "accuracy": Column("accuracy", percent),
            "rmse": Column("RMSE", digits(3)),
            "ece": Column("ECE", digits(3)),
            "mce": Column("MCE", digits(2)),
        },
    ),
    Table(
        "What it cost",
        COSTS,
        {
            "rounds": Column("rounds", digits(0)),
            "bytes_up": Column("sent by clients", readable_bytes),
            "bytes_down": Column("received by them", readable_bytes),
            "seconds": Column("time", readable_seconds),
        },
    ),
)

#: All columns of the comparison.
COLUMNS = (*(name for part in TABLES for name in part.columns), "warnings")


def compare(
    results: Mapping[str, InferenceData],
    reference: str | None = None,
    *,
    federation: Federation | None = None,
    test: Any = None,
) -> pd.DataFrame:
    """Compare results of the same model and data.

    Args:
        results: InferenceData by name.
        reference: the name of the one that the others are measured by, such as a long run of NUTS.
        federation: on which they were run; adds KSD, the prior's count and the check of spreads.
        test: arguments of the model for test data, observations included; adds the predictive columns. Needs
            the federation.

    Returns:
        A row a result and the columns

        - `mean_error`: largest error of a posterior mean, in reference SDs; `sd_ratio_min`, `sd_ratio_max`:
          smallest and largest SD, over the reference's; `sliced_wasserstein`, `mmd2`: distances to the
          reference, see `pyro_fed.analysis.judging.distances`;
        - `ksd`: distance to the density itself; `prior_count`, `prior_count_se`: how often the prior counts,
          see `pyro_fed.analysis.judging.doubts`;
        - `elpd_loo`, `elpd_loo_se`, `bad_pareto_k`: PSIS-LOO on the training rows, and the rows that make it
          unreliable;
        - `test_log_density` (a row), `accuracy`, `ece` and `mce`, or `rmse`;
        - `rounds`, `bytes_up`, `bytes_down`, `seconds`; bytes are NaN where the data themselves were pooled;
        - `warnings`: what speaks against the result, one sentence each, separated by "; ".

    Raises:
        SettingError: an unknown reference, test data without a federation, or nothing to compare.
        DataError: the results have different parameters.

    Example:
        >>> reference = pf.run(pf.NUTS(), fed)
        >>> table = pf.compare({"NUTS": reference, "FedEP": pf.run(pf.FedEP(), fed)}, "NUTS", federation=fed)
        >>> table[["mean_error", "sd_ratio_min", "bytes_up", "warnings"]]
    """
    _check(results, reference, federation, test)
    names = _common_variables(results)
    truth = distances.stacked(results[reference], names)[0] if reference is not None else None
    sds = _laplace(federation)
    rows = {}
    for name, idata in results.items():
        row = _cost(idata) | _loo(idata)
        found = _recorded(idata)
        if truth is not None and name != reference:
            measured = distances.against_reference(distances.stacked(idata, names)[0], truth)
            found += doubts.reference_warnings(measured)
            row |= measured
        if federation is not None:
            values, said = _density(idata, federation, sds)
            row |= values
            found += said
        if test is not None:
            row |= _predictive(idata, federation, test)
        rows[name] = row | {"warnings": "; ".join(dict.fromkeys(found))}
    return _ordered(pd.DataFrame.from_dict(rows, orient="index").rename_axis("result"))


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    return table[[name for name in COLUMNS if name in table]]


def _check(
    results: Mapping[str, InferenceData], reference: str | None, federation: Federation | None, test: Any
) -> None:
    if not results:
        raise SettingError("compare needs at least one result, received none")
    if reference is not None and reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}")
    if test is not None and federation is None:
        raise SettingError("test data need the federation, which holds the model: compare(..., federation=fed)")


def _common_variables(results: Mapping[str, InferenceData]) -> list[str]:
    each = {name: set(map(str, idata["posterior"].data_vars)) for name, idata in results.items()}
    common = set.intersection(*each.values())
    odd = {name: sorted(names ^ common) for name, names in each.items() if names != common}
    if odd:
        raise DataError(f"the results have different parameters: {odd} are not in all of them")
    return sorted(common)


def _recorded(idata: InferenceData) -> list[str]:
    """Warnings of the run itself, and none that the run's end has overtaken."""
    return [line for line in str(idata.attrs.get("warnings", "")).split("\n") if line]


def _cost(idata: InferenceData) -> dict[str, Any]:
    if "federation" not in idata:
        return {}
    record = idata["federation"]
    pooled = str(idata.attrs.get("centralized")) == "True"
    up, down = (math.nan if pooled else float(np.nansum(record[name])) for name in ("bytes_up", "bytes_down"))
    seconds = float(np.nansum(record["seconds"]))
    return {"rounds": record.sizes["round"], "bytes_up": up, "bytes_down": down, "seconds": seconds}


def _loo(idata: InferenceData) -> dict[str, float]:
    if "log_likelihood" not in idata or idata["posterior"].sizes["draw"] < FEWEST_DRAWS_FOR_LOO:
        return {}
    likelihood = idata["log_likelihood"]
    rows, draws = [], None
    for value in likelihood.data_vars.values():
        draws = value.values.reshape(value.shape[0] * value.shape[1], -1)
        rows.append(draws)
    total = sum(rows[1:], rows[0]) if len({r.shape for r in rows}) == 1 else np.concatenate(rows, 1)
    if np.ptp(total, axis=0).max() == 0:
        return {}  # a single point, repeated: nothing can be left out
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")  # kept as `bad_pareto_k`
        loo: Any = az.loo  # without types
        found = loo(_as_idata(total), pointwise=True)
    bad = int((np.asarray(found.pareto_k) > LARGEST_PARETO_K).sum())
    return {"elpd_loo": float(found.elpd_loo), "elpd_loo_se": float(found.se), "bad_pareto_k": bad}


def _as_idata(log_likelihood: np.ndarray) -> InferenceData:
    """What `arviz.loo` needs, of a pointwise log-likelihood (S, N)."""
    dims = ("chain", "draw", "row")
    groups = {
        "posterior": xr.Dataset({"none": (dims[:2], np.zeros((1, len(log_likelihood))))}),
        "log_likelihood": xr.Dataset({"all": (dims, log_likelihood[None])}),
    }
    return make_inference_data(groups, {})


def _laplace(federation: Federation | None) -> Tensor | None:
    if federation is None or federation.problem.dim > LARGEST_DIM_FOR_LAPLACE:
        return None
    return laplace_sds(federation)


def _density(idata: InferenceData, federation: Federation, sds: Tensor | None) -> tuple[dict[str, float], list[str]]:
    if idata.attrs.get("draws_are") == "point":
        return {}, ["a point, without any uncertainty"]
    problem = federation.problem
    with torch.no_grad():
        few = thinned(idata, DRAWS_FOR_KSD)
        draws = unconstrained_draws(few, problem)
        prior, likelihood = distances.scores(problem, draws)
    count = doubts.prior_count(draws, prior, likelihood)
    values = {
        "ksd": ksd(few, federation, num_draws=DRAWS_FOR_KSD, statistic="U"),
        "prior_count": count.value,
        "prior_count_se": count.error,
    }
    spread = doubts.spread_warnings(draws, sds) if sds is not None else []
    return values, doubts.density_warnings(count) + spread


def _predictive(idata: InferenceData, federation: Any, test: Any) -> dict[str, float]:
    problem = federation.problem
    draws = unconstrained_draws(thinned(idata, distances.DRAWS_COMPARED), problem)
    predictions = metrics.predict_rows(problem, draws, test)
    row: dict[str, float] = {"test_log_density": metrics.log_predictive_density(predictions.log_prob)}
    if predictions.probs is not None:
        row["accuracy"] = metrics.accuracy(predictions.probs, predictions.value)
        row |= calibration_errors(predictions.probs, predictions.value)
    if predictions.mean is not None:
        row["rmse"] = metrics.rmse(predictions.mean, predictions.value)
    return row


def thinned(idata: InferenceData, count: int) -> dict[str, xr.Dataset]:
    """Fewer draws of a posterior, evenly spaced over the draws of every chain.

    Args:
        idata: a result.
        count: draws to keep of all chains together, about; at least two of each chain.

    Returns:
        The group `posterior` alone.
    """
    posterior = idata["posterior"]
    each = max(2, count // posterior.sizes["chain"])
    kept = np.unique(np.linspace(0, posterior.sizes["draw"] - 1, each).round().astype(int))
    return {"posterior": posterior.isel(draw=kept)}
