"""Figures of model criticism: what each client moves, and what a model cannot make of its rows."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, tidy
from pyro_fed.errors import SettingError

#: Parameters that the figure of influence shows, those that are moved most.
MOST_PARAMETERS = 20
#: SDs at which the colours of that figure end.
STRONGEST = 3.0


def plot_influence(found: xr.Dataset) -> np.ndarray:
    """By how many SDs each client moves each parameter, and all of it together.

    Args:
        found: of `pyro_fed.influence`.

    Returns:
        The two axes, an array (2,): the table of shifts in colours, and a bar a client.

    Raises:
        SettingError: it is something else.

    Example:
        >>> pf.plot_influence(pf.influence(idata))
    """
    if not {"shift", "influence", "disagreement"} <= set(getattr(found, "data_vars", ())):
        raise SettingError("plot_influence takes what pf.influence returns")
    most = np.nan_to_num(np.abs(found["shift"].values)).max(0)
    chosen = np.sort(np.argsort(-most)[:MOST_PARAMETERS])
    names, labels = [f"{name}" for name in found["client"].values], found["parameter"].values[chosen]
    height = 1.5 + 0.3 * len(names)
    _, (left, right) = plt.subplots(
        1, 2, figsize=(4 + 0.35 * len(chosen), height), layout="constrained", width_ratios=(3, 2)
    )
    image = left.imshow(found["shift"].values[:, chosen], cmap="RdBu_r", vmin=-STRONGEST, vmax=STRONGEST, aspect="auto")
    left.set(xticks=range(len(chosen)), yticks=range(len(names)), title="shift of the mean (SDs)")
    left.set_xticklabels(labels, rotation=90)
    left.set_yticklabels(names)
    left.figure.colorbar(image, ax=left, extend="both", shrink=0.8)
    size, far = (np.nan_to_num(found[name].values, posinf=np.nan) for name in ("influence", "disagreement"))
    place = np.arange(len(names))
    right.barh(place - 0.2, size, 0.4, color=COLORS[0], label="influence")
    right.barh(place + 0.2, far, 0.4, color=COLORS[1], label="disagreement")
    right.set(yticks=[], ylim=(len(names) - 0.5, -0.5), xlabel="SDs")
    right.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    tidy(right, grid="x")
    return np.array([left, right])


def plot_checks(found: xr.Dataset, *, statistic: str | None = None) -> np.ndarray:
    """Replications of a statistic at each client, and what it is of the observed rows.

    Args:
        found: of `pyro_fed.check_clients`.
        statistic: which one; the first by default.

    Returns:
        The axes, one a client.

    Raises:
        SettingError: it is something else, or has no such statistic.

    Example:
        >>> pf.plot_checks(pf.check_clients(idata, fed, np.mean))
    """
    if not {"p_value", "replicated"} <= set(getattr(found, "data_vars", ())):
        raise SettingError("plot_checks takes what pf.check_clients returns")
    known = [str(name) for name in found["statistic"].values]
    if statistic is not None and statistic not in known:
        raise SettingError(f"there is no statistic {statistic!r}; there are {known}")
    one = found.sel(statistic=statistic or known[0])
    count = one.sizes["client"]
    columns = min(count, 5)
    _, axes = plt.subplots(
        -(-count // columns),
        columns,
        figsize=(2.4 * columns, 2.0 * -(-count // columns)),
        squeeze=False,
        layout="constrained",
    )
    for i, ax in enumerate(axes.flat):
        if i < count:
            _check(ax, one.isel(client=i))
        else:
            ax.set_visible(False)
    return np.array(axes.flat[:count])


def _check(ax: Axes, one: xr.Dataset) -> None:
    values, observed = one["replicated"].values, float(one["observed"])
    ax.set(yticks=[], title=f"{one['client'].item()}: p = {float(one['p_value']):.2f}")
    ax.title.set_fontsize(8)
    if np.isfinite(observed):
        ax.hist(values, bins=min(30, len(np.unique(values))), color=COLORS[0], alpha=0.6)
        ax.axvline(observed, color=COLORS[1], linewidth=2)
    tidy(ax, grid=None)
