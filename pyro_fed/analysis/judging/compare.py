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
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.importance import LARGEST_PARETO_K
from pyro_fed.results.to_arviz import make_inference_data, unconstrained_draws

#: Draws at which scores are taken, evenly spaced.
DRAWS_FOR_KSD = 400
#: PSIS needs a tail to fit.
FEWEST_DRAWS_FOR_LOO = 25
#: Above, the Hessian costs more than the check is worth.
LARGEST_DIM_FOR_LAPLACE = 300


def compare(
    results: Mapping[str, Any],
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
          reference, see `pyro_fed.distances`;
        - `ksd`: distance to the density itself; `prior_count`, `prior_count_se`: how often the prior counts,
          see `pyro_fed.trust`;
        - `elpd_loo`, `elpd_loo_se`, `bad_pareto_k`: PSIS-LOO on the training rows, and the rows that make it
          unreliable;
        - `test_log_density` (a row), `accuracy`, `ece` and `mce`, or `rmse`;
        - `rounds`, `bytes_up`, `bytes_down`, `seconds`; bytes are NaN where the data themselves were pooled;
        - `warnings`: what speaks against the result, one sentence each, separated by "; ".

    Raises:
        SettingError: an unknown reference, test data without a federation, or nothing to compare.
        DataError: the results have different parameters.
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


#: All columns, in the order in which they are shown.
COLUMNS = (
    *("mean_error", "sd_ratio_min", "sd_ratio_max", "sliced_wasserstein", "mmd2"),
    *("ksd", "prior_count", "prior_count_se", "elpd_loo", "elpd_loo_se", "bad_pareto_k"),
    *("test_log_density", "accuracy", "rmse", "ece", "mce"),
    *("rounds", "bytes_up", "bytes_down", "seconds", "warnings"),
)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    return table[[name for name in COLUMNS if name in table]]


def _check(results: Mapping[str, Any], reference: str | None, federation: Federation | None, test: Any) -> None:
    if not results:
        raise SettingError("compare needs at least one result, received none")
    if reference is not None and reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}")
    if test is not None and federation is None:
        raise SettingError("test data need the federation, which holds the model: compare(..., federation=fed)")


def _common_variables(results: Mapping[str, Any]) -> list[str]:
    each = {name: set(idata["posterior"].data_vars) for name, idata in results.items()}
    common = set.intersection(*each.values())
    odd = {name: sorted(names ^ common) for name, names in each.items() if names != common}
    if odd:
        raise DataError(f"the results have different parameters: {odd} are not in all of them")
    return sorted(common)


def _recorded(idata: Any) -> list[str]:
    """Warnings of the run itself, and none that the run's end has overtaken."""
    return [line for line in str(idata.attrs.get("warnings", "")).split("\n") if line]


def _cost(idata: Any) -> dict[str, Any]:
    if "federation" not in idata.groups():
        return {}
    record = idata["federation"]
    pooled = str(idata.attrs.get("centralized")) == "True"
    up, down = (math.nan if pooled else float(np.nansum(record[name])) for name in ("bytes_up", "bytes_down"))
    seconds = float(np.nansum(record["seconds"]))
    return {"rounds": record.sizes["round"], "bytes_up": up, "bytes_down": down, "seconds": seconds}


def _loo(idata: Any) -> dict[str, float]:
    if "log_likelihood" not in idata.groups() or idata["posterior"].sizes["draw"] < FEWEST_DRAWS_FOR_LOO:
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
        found = az.loo(_as_idata(total), pointwise=True)
    bad = int((np.asarray(found.pareto_k) > LARGEST_PARETO_K).sum())
    return {"elpd_loo": float(found.elpd_loo), "elpd_loo_se": float(found.se), "bad_pareto_k": bad}


def _as_idata(log_likelihood: np.ndarray) -> Any:
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
    with torch.no_grad():
        return doubts.laplace_sds(federation, federation.problem)


def _density(idata: Any, federation: Federation, sds: Tensor | None) -> tuple[dict[str, float], list[str]]:
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


def _predictive(idata: Any, federation: Any, test: Any) -> dict[str, float]:
    problem = federation.problem
    draws = unconstrained_draws(thinned(idata, distances.DRAWS_COMPARED), problem)
    predictions = metrics.predict_rows(problem, draws, test)
    row = {"test_log_density": metrics.log_predictive_density(predictions.log_prob)}
    if predictions.probs is not None:
        row["accuracy"] = metrics.accuracy(predictions.probs, predictions.value)
        row |= calibration_errors(predictions.probs, predictions.value)
    if predictions.mean is not None:
        row["rmse"] = metrics.rmse(predictions.mean, predictions.value)
    return row


def thinned(idata: Any, count: int) -> Any:
    """A result with about `count` draws in all, evenly spaced over the draws of every chain."""
    posterior = idata["posterior"]
    each = max(2, count // posterior.sizes["chain"])
    kept = np.unique(np.linspace(0, posterior.sizes["draw"] - 1, each).round().astype(int))
    return {"posterior": posterior.isel(draw=kept)}
