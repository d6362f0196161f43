"""The functions of ArviZ that this package uses, with the same interface for ArviZ 0.23 and 1.x.

    ArviZ 0.23      everything is in `arviz`; results are `arviz.InferenceData`
    ArviZ 1.x       `arviz_stats` computes, also on bare arrays; results are `xarray.DataTree`, and
                    `arviz.InferenceData` is an alias of it, so that only the version distinguishes the two

This package uses `result["posterior"]`, `"log_likelihood" in result`, `attrs` and `to_netcdf` of a result, which both
have. ArviZ takes seconds to import, and clients do not need it: each function imports it when it is called.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Whether the installed ArviZ is 1.x.
NEW = int(version("arviz").split(".")[0]) >= 1
#: The call that prints a table of medians and quantiles.
MEDIANS = "az.summary(idata, kind='stats_median')" if NEW else "az.summary(idata, stat_focus='median')"
#: First version of arviz-stats whose standard errors divide by the number of rows minus one.
UNBIASED = (1, 3, 2)
#: Probability of the intervals in tables, and the names of their ends, as in ArviZ 0.23.
INTERVAL, ENDS = 0.94, ("hdi_3%", "hdi_97%")
#: Columns of a table, in this order.
COLUMNS = ("mean", "sd", *ENDS, "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")


def result_type() -> Any:
    """The class of a result."""
    if NEW:
        import xarray

        return xarray.DataTree
    import arviz

    return arviz.InferenceData


def make_result(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """A result with these groups."""
    cls = result_type()
    if not NEW:
        return cls(attrs=dict(attrs), warn_on_custom_groups=False, **groups)
    import xarray

    return cls.from_dict({"/": xarray.Dataset(attrs=dict(attrs)), **groups})


def with_group(result: Any, name: str, group: xr.Dataset) -> Any:
    """A copy of a result with one more group."""
    return make_result(
        {**{other: group_of(result, other) for other in names_of_groups(result)}, name: group}, result.attrs
    )


def names_of_groups(result: Any) -> list[str]:
    """The names of a result's groups."""
    return list(map(str, result.children if NEW else result.groups()))


def group_of(result: Any, name: str) -> xr.Dataset:
    """A group of a result, or of a plain mapping of datasets, as a dataset."""
    group: Any = result[name]
    return cast("xr.Dataset", group.to_dataset() if NEW and hasattr(group, "to_dataset") else group)


def psis(log_weights: Array, efficiency: float = 1.0) -> tuple[Array, float]:
    """Normalised Pareto-smoothed log weights (S,), and the shape k of their tail, infinite if none can be fitted.

    `efficiency` is the effective sample size divided by S: a smaller one needs a longer tail.
    """
    if not NEW:
        import arviz

        with np.errstate(over="ignore"):  # a tail of k = 100 overflows before quantiles are cut at the largest
            smooth, k = arviz.psislw(log_weights, efficiency)
        return smooth, float(k)
    from arviz_stats.base import array_stats

    try:
        # Its argument is that of leave-one-out, the logarithms of ratios 1/w.
        with np.errstate(over="ignore"):
            smooth, k = array_stats.psislw(-log_weights, r_eff=efficiency)
    except ValueError:  # "n_draws_tail must be at least 5", "All tail values are the same"
        return log_weights - np.logaddexp.reduce(log_weights), math.inf
    return smooth, float(k) if math.isfinite(k) else math.inf


def leave_out_weights(log_lik: Array, efficiency: float = 1.0) -> tuple[Array, Array]:
    """Smoothed log weights (S, n) of draws without each row; Pareto's k (n,), -inf for a constant density."""
    smoothed = [psis(-row, efficiency) for row in log_lik.T]
    k = np.where(np.ptp(log_lik, axis=0) == 0, -np.inf, [k for _, k in smoothed])
    return np.stack([weights for weights, _ in smoothed], 1), k


def elpd_se(variance: float, rows: int) -> float:
    """The standard error of a sum over rows of numbers of this variance, as in the installed ArviZ."""
    number = tuple(map(int, re.findall(r"\d+", version("arviz-stats"))[:3])) if NEW else (0,)
    divisor = rows - 1 if number >= UNBIASED else rows
    return rows * math.sqrt(variance / divisor) if divisor else 0.0


def elpd_data(values: Mapping[str, Any]) -> Any:
    """An ELPDData of the installed ArviZ, from fields named as in ArviZ 0.23, `elpd_loo` (`elpd_waic`) first."""
    if not NEW:
        from arviz.stats.stats_utils import ELPDData

        return ELPDData(data=list(values.values()), index=list(values))
    from arviz_stats import utils

    kind = next(iter(values)).removeprefix("elpd_")
    names = {"elpd": f"elpd_{kind}", "p": f"p_{kind}", "elpd_i": f"{kind}_i"}
    same = ("se", "n_samples", "n_data_points", "scale", "warning", "good_k", "pareto_k")
    fields = {name: values.get(names.get(name, name)) for name in (*names, *same)}
    # arviz-stats 1.3.3 and later have a class for each kind; earlier versions have one class with the kind as a field.
    new_class: Any = getattr(utils, f"ELPDData{kind.upper()}", utils.ELPDData)
    if "kind" in inspect.signature(new_class).parameters:
        fields["kind"] = kind
    data = new_class(**fields)
    for name in values.keys() - {*names.values(), *same}:
        setattr(data, name, values[name])
    return data


def rhat(draws: Array) -> Array:
    """Rank-normalised split R-hat (D,) of chains (chain, draw, D)."""
    return _diagnostic("rhat", draws)


def ess(draws: Array, method: Literal["bulk", "mean"] = "bulk") -> Array:
    """Effective sample sizes (D,) of chains (chain, draw, D)."""
    return _diagnostic("ess", draws, method=method)


def _diagnostic(name: str, draws: Array, **options: Any) -> Array:
    if NEW:
        from arviz_stats.base import array_stats

        return np.asarray(getattr(array_stats, name)(draws, chain_axis=0, draw_axis=1, **options))
    import arviz
    import xarray

    data = xarray.Dataset({"z": (("chain", "draw", "i"), draws)})
    return np.asarray(getattr(arviz, name)(data, **options)["z"])


def bfmi(energy: Array) -> Array:
    """Estimated Bayesian fraction of missing information (chain,) of energies (chain, draw)."""
    if NEW:
        from arviz_stats.base import array_stats

        return np.asarray(array_stats.bfmi(energy))
    import arviz

    return np.asarray(arviz.bfmi(energy))


def kde(values: Array, low: float, high: float) -> tuple[Array, Array]:
    """A grid from `low` to `high` and the kernel density estimate of draws (S,) on it, without bound correction."""
    options = {"bound_correction": False, "custom_lims": (low, high)}
    if NEW:
        from arviz_stats.base import array_stats

        grid, density, _ = array_stats.kde(values, **options)
    else:
        import arviz

        grid, density = arviz.kde(values, **options)
    return np.asarray(grid), np.asarray(density)


def summary(result: Any, *, chains: bool) -> pd.DataFrame:
    """Mean, SD and 94 % interval of each scalar of the group `posterior`, a row each; diagnostics of chains."""
    import arviz

    summarise: Any = arviz.summary  # its types are those of one version
    options = {"ci_prob": INTERVAL, "ci_kind": "hdi"} if NEW else {"hdi_prob": INTERVAL}
    names = list(map(str, result["posterior"].data_vars))
    table = summarise(result, var_names=names, kind="all" if chains else "stats", round_to="none", **options)
    table = table.rename(columns=dict(zip(("hdi94_lb", "hdi94_ub"), ENDS, strict=True)))
    return table[[name for name in COLUMNS if name in table]]


def power_scaling(result: Any, component: str, names: list[str], of: list[str] | None) -> xr.Dataset:
    """The sensitivity of draws to a power of the prior or of the likelihood, for each entry of each variable.

    `component` is "prior" or "likelihood", `names` are variables of `posterior`, and `of` those of the group
    `log_prior` or `log_likelihood` (None for all).
    """
    if NEW:
        from arviz_stats import psense

        return cast("xr.Dataset", psense(result, var_names=names, group=component, group_var_names=of))
    import arviz

    sensitivity = arviz.psens(result, component=component, component_var_names=of, var_names=names)
    # For a single variable ArviZ returns a DataArray.
    return cast("xr.Dataset", sensitivity if len(names) > 1 else sensitivity.to_dataset(name=names[0]))
