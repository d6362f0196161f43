"""A figure of each round, against rounds and against what was sent."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from pyro_fed.analysis.plots.style import by_name, colors, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.results.inference_data import InferenceData, flag

#: Traffic that varies by more than this factor is shown on a logarithmic axis.
DECADES = 100.0


@checked
def plot_convergence(
    results: Mapping[str, InferenceData] | InferenceData, metric: str = "change", *, log: bool = True
) -> Figure:
    """`metric` after each round, on the left against rounds, on the right against the bytes sent until then.

    Args:
        results: InferenceData by name, or one of them.
        metric: a variable of the group `federation`, such as "change", the update of a round (zero:
            converged); where it is given for each client, their mean is shown.
        log: logarithmic vertical axis.

    Returns:
        The figure.

    Raises:
        SettingError: no result has this metric.

    Example:
        >>> pf.plot_convergence({"FedEP": idata, "PVI": other}).savefig("convergence.png")
    """
    results = by_name(results)
    with_metric = {name: idata for name, idata in results.items() if metric in idata["federation"]}
    if not with_metric:
        known = sorted({str(name) for idata in results.values() for name in idata["federation"].data_vars})
        raise SettingError(f"no result has the metric {metric!r}; there are {known}")
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, layout="constrained")
    palette = colors(results)
    for name, idata in with_metric.items():
        values, megabytes = _series(idata["federation"], metric)
        style = {"color": palette[name], "label": name, "linewidth": 1.6, "marker": "o", "markersize": 3}
        known = np.isfinite(values)  # a phase that it started from has its own measure
        axes[0].plot(np.arange(1, len(values) + 1)[known], values[known], **style)
        if not flag(idata.attrs, "centralized"):
            axes[1].plot(megabytes[known], values[known], **style)
    for ax, label in zip(axes, ("round", "sent and received until then, MB"), strict=True):
        ax.set_xlabel(label)
        tidy(ax)
        if log:
            ax.set_yscale("log")
    sent = [line.get_xdata() for line in axes[1].lines]
    if sent and max(x.max() for x in sent) > DECADES * min(x.min() for x in sent):
        axes[1].set_xscale("log")
    axes[0].set_ylabel(f"{metric} of the round" if metric == "change" else metric)
    if len(results) > 1:
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _series(record: xr.Dataset, metric: str) -> tuple[np.ndarray, np.ndarray]:
    values = record[metric].values
    if values.ndim == 2:
        seen = np.isfinite(values)
        values = np.where(seen.any(1), np.where(seen, values, 0).sum(1) / np.maximum(seen.sum(1), 1), np.nan)
    sent = sum(np.nansum(record[name].values.reshape(len(values), -1), 1) for name in ("bytes_up", "bytes_down"))
    return values, np.cumsum(sent) / 1e6
