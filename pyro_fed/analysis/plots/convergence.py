"""A figure of a round, such as its change, against the number of rounds and against the bytes sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from pyro_fed.analysis.plots.style import GivenAxes, by_name, colors, panels, plain_ticks, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.results.inference_data import InferenceData, flag

#: Bytes and numbers of rounds that vary by more than this factor are shown on a logarithmic axis.
DECADES = 100.0
#: Each round has a dot if there are at most this many rounds.
MARKED = 60


@checked
def plot_convergence(
    results: Mapping[str, InferenceData] | InferenceData,
    metric: str = "change",
    *,
    log: bool = True,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """A metric after each round: on the left against the round, on the right against the bytes sent until then.

    Args:
        results: InferenceData by name, or a single one.
        metric: a variable of the group `federation`, such as "change", the update of a round (zero:
            converged); where it is given for each client, their mean is shown.
        log: logarithmic vertical axis.
        ax: two matplotlib axes; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The two axes, an array (2,): against rounds and against bytes.

    Raises:
        SettingError: no result has this metric, or fewer than two axes.

    Example:
        >>> by_round, by_bytes = pf.plots.plot_convergence({"FedEP": idata, "PVI": other})
    """
    results = by_name(results)
    recorded = {name: idata for name, idata in results.items() if "federation" in idata}
    with_metric = {name: idata for name, idata in recorded.items() if metric in idata["federation"]}
    if not with_metric:
        known = sorted({str(name) for idata in recorded.values() for name in idata["federation"].data_vars})
        raise SettingError(f"plot_convergence: metric must be one of {known}, received {metric!r}")
    axes = panels(ax, 2, 2, figsize or (8.4, 3.2), sharey=True)
    palette = colors(results)
    for name, idata in with_metric.items():
        values, megabytes = _series(idata["federation"], metric)
        style = {"color": palette[name], "label": name, "linewidth": 1.6}
        style |= {"marker": "o", "markersize": 3} if len(values) <= MARKED else {}
        known = np.isfinite(values)  # rounds of an algorithm that the run started from lack this metric
        axes[0].plot(np.arange(1, len(values) + 1)[known], values[known], **style)
        if not flag(idata.attrs, "centralized"):
            axes[1].plot(megabytes[known], values[known], **style)
    for one, label in zip(axes, ("round", "sent and received until then, MB"), strict=True):
        one.set_xlabel(label)
        tidy(one)
        if log:
            one.set_yscale("log")
            plain_ticks(one.yaxis)
    lengths = [len(line.get_xdata()) for line in axes[0].lines]
    if lengths and max(lengths) > DECADES * max(min(lengths), 1):
        axes[0].set_xscale("log")
        plain_ticks(axes[0].xaxis)
    sent = [line.get_xdata() for line in axes[1].lines]
    if sent and max(x.max() for x in sent) > DECADES * min(x.min() for x in sent):
        axes[1].set_xscale("log")
        plain_ticks(axes[1].xaxis)
    axes[0].set_ylabel(f"{metric} of the round" if metric == "change" else metric)
    if len(results) > 1:
        axes[0].legend(frameon=False, fontsize=9)
    return axes


def _series(record: xr.Dataset, metric: str) -> tuple[np.ndarray, np.ndarray]:
    values = record[metric].values
    if values.ndim == 2:
        seen = np.isfinite(values)
        values = np.where(seen.any(1), np.where(seen, values, 0).sum(1) / np.maximum(seen.sum(1), 1), np.nan)
    sent = sum(np.nansum(record[name].values.reshape(len(values), -1), 1) for name in ("bytes_up", "bytes_down"))
    return values, np.cumsum(sent) / 1e6
