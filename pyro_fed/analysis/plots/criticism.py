"""Figures of model criticism: each client's influence, information, and posterior predictive checks of its rows."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm

from pyro_fed.analysis.plots.style import (
    COLORS,
    INNER_90,
    REFERENCE,
    REFERENCE_LINE,
    GivenAxes,
    check_dataset,
    legend_above,
    mark_outside,
    new_axes,
    panels,
    robust_extent,
    short_names,
    shortened,
    tidy,
    width_with_names,
)
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.errors import SettingError

#: The figure of influence shows this many parameters: those that a client moves most.
MAX_PARAMETERS = 20


@checked
def plot_influence(
    found: xr.Dataset, *, ax: GivenAxes = None, figsize: tuple[float, float] | None = None
) -> np.ndarray:
    """By how many SDs each client moves each parameter, with its influence and its disagreement with the others.

    Args:
        found: the dataset returned by `pyro_fed.influence`.
        ax: two matplotlib axes; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The two axes, an array (2,): the table of shifts in colours, and a pair of bars for each client.

    Raises:
        SettingError: `found` is something else.

    Example:
        >>> pf.plots.plot_influence(pf.influence(idata))
    """
    check_dataset(found, {"shift", "influence", "disagreement"}, "plot_influence", "pf.influence")
    most = np.nan_to_num(np.abs(found["shift"].values)).max(0)
    chosen = np.sort(np.argsort(-most)[:MAX_PARAMETERS])
    names = found["client"].values
    letters = max(len(shortened(label)) for label in found["parameter"].values)
    size = figsize or (4 + 0.35 * len(chosen), 1.2 + 0.09 * letters + 0.3 * len(names))
    left, right = panels(ax, 2, 2, size, width_ratios=(3, 2))
    draw_shifts(left, found, chosen)
    draw_influence(right, found)
    return np.array([left, right])


def draw_shifts(ax: Axes, found: xr.Dataset, chosen: np.ndarray) -> None:
    """Draw the shifts of `pyro_fed.influence` in colours: a row for each client, a column for each chosen parameter."""
    shifts, labels = found["shift"].values[:, chosen], found["parameter"].values[chosen]
    reach = max(MATTERS, robust_extent(shifts.ravel()))  # shifts that do not matter are pale
    image = ax.pcolormesh(shifts, cmap="RdBu_r", norm=CenteredNorm(halfrange=reach))
    ax.set(xticks=np.arange(len(chosen)) + 0.5, yticks=np.arange(len(shifts)) + 0.5, title="shift of the mean (SDs)")
    ax.set_xticklabels(short_names(labels), rotation=90)
    ax.set_yticklabels(short_names(found["client"].values))
    ax.invert_yaxis()
    ax.figure.colorbar(image, ax=ax, extend="both", shrink=0.8)


def draw_influence(ax: Axes, found: xr.Dataset, named: bool = False) -> None:
    """Draw bars of each client's influence and disagreement, the first client on top; `named` adds the names."""
    size, far = (np.nan_to_num(found[name].values, posinf=np.nan) for name in ("influence", "disagreement"))
    place = np.arange(len(size))
    ax.barh(place - 0.2, size, 0.4, color=COLORS[0], label="influence")
    ax.barh(place + 0.2, far, 0.4, color=COLORS[1], label="disagreement")
    ax.set(ylim=(len(size) - 0.5, -0.5), xlabel="SDs")
    for at in place[np.isinf(found["influence"].values)]:
        ax.text(0, at, " nothing is known without it", fontsize=7, va="center")
    reach = robust_extent(np.concatenate([size, far]))
    ax.set_xlim(0, 1.05 * reach or 1.0)
    for values, at, color in ((size, place - 0.2, COLORS[0]), (far, place + 0.2, COLORS[1])):
        mark_outside(ax, values, at, color, beyond=True)
    ax.set_yticks(place if named else [], short_names(found["client"].values) if named else [])
    legend_above(ax)
    tidy(ax, grid="x")


@checked
def plot_checks(
    found: xr.Dataset,
    *,
    statistic: str | None = None,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """A histogram of the replications of a statistic for each client, with a line at the observed statistic.

    Args:
        found: the dataset returned by `pyro_fed.check_clients`.
        statistic: name of the statistic to draw; by default the first.
        ax: matplotlib axes, one for each client; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, one for each client.

    Raises:
        SettingError: `found` is something else, has no such statistic, or has more clients than there are axes.

    Example:
        >>> pf.plots.plot_checks(pf.check_clients(idata, fed, np.mean))
    """
    one = _statistic(found, statistic)
    count = one.sizes["client"]
    columns = min(count, 5)
    axes = panels(ax, count, columns, figsize or (2.4 * columns, 2.0 * -(-count // columns)))
    for i, panel in enumerate(axes):
        _check(panel, one.isel(client=i))
    return axes


@checked
def plot_check_intervals(
    found: xr.Dataset,
    *,
    statistic: str | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """Checks of all clients in one panel: for each the 90 % interval of the replications and the observed statistic.

    Args:
        found: the dataset returned by `pyro_fed.check_clients`.
        statistic: name of the statistic to draw; by default the first.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes. Dots in orange lie outside their intervals.

    Raises:
        SettingError: `found` is something else, or has no such statistic.

    Example:
        >>> pf.plots.plot_check_intervals(pf.check_clients(idata, fed, np.mean))
    """
    one = _statistic(found, statistic)
    place = np.arange(one.sizes["client"])
    panel = new_axes(ax, figsize or (width_with_names(one["client"].values, 4.6), 1.2 + 0.28 * len(place)))
    known = np.isfinite(one["observed"].values)
    low, high = np.quantile(one["replicated"].values[known], INNER_90, axis=-1)
    observed, outside = one["observed"].values[known], np.zeros(int(known.sum()), dtype=bool)
    outside |= (observed < low) | (observed > high)
    panel.hlines(place[known], low, high, color=REFERENCE, linewidth=6, label="90 % of replications")
    for which, color, label in ((~outside, COLORS[0], "observed"), (outside, COLORS[1], "observed, outside")):
        if which.any():
            panel.scatter(observed[which], place[known][which], s=22, color=color, zorder=3, label=label)
    panel.set_yticks(place, short_names(one["client"].values))
    middle = np.median((low + high) / 2) if known.any() else 0.0
    reach = robust_extent(np.concatenate([low, high, observed]) - middle)
    if reach:
        panel.set_xlim(middle - 1.08 * reach, middle + 1.08 * reach)
    mark_outside(panel, observed, place[known], COLORS[1])
    panel.set(ylim=(len(place) - 0.5, -0.5), xlabel=str(one["statistic"].item()), ylabel="client")
    legend_above(panel)
    tidy(panel, grid="x")
    return panel


def _statistic(found: xr.Dataset, statistic: str | None) -> xr.Dataset:
    check_dataset(found, {"p_value", "replicated"}, "a figure of checks", "pf.check_clients")
    known = [str(name) for name in found["statistic"].values]
    if statistic is not None and statistic not in known:
        raise SettingError(f"there is no statistic {statistic!r}; there are {known}: name one of them")
    return found.sel(statistic=statistic or known[0])


def _check(ax: Axes, one: xr.Dataset) -> None:
    values, observed = one["replicated"].values, float(one["observed"])
    ax.set(yticks=[], title=f"{shortened(one['client'].item(), 20)}: p = {float(one['p_value']):.2f}")
    ax.title.set_fontsize(8)
    if np.isfinite(observed):
        ax.hist(values, bins=min(30, len(np.unique(values))), color=COLORS[0], alpha=0.6)
        ax.axvline(observed, color=COLORS[1], linewidth=2)
        middle = np.median(values)
        reach = robust_extent(np.append(values, observed) - middle)
        if reach < abs(observed - middle):
            ax.set_xlim(middle - 1.1 * reach, middle + 1.1 * reach)
            mark_outside(ax, np.array([observed]), np.array([0.9 * ax.get_ylim()[1]]), COLORS[1])
    tidy(ax, grid=None)


@checked
def plot_contributions(
    found: xr.Dataset, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """Two bars for each client: its share of the information, averaged over parameters, and its share of the rows.

    Args:
        found: the dataset returned by `pyro_fed.contributions`.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes; the last bar is the prior's.

    Raises:
        SettingError: `found` is something else.

    Example:
        >>> pf.plots.plot_contributions(pf.contributions(idata, fed))
    """
    check_dataset(found, {"contribution", "prior_contribution"}, "plot_contributions", "pf.contributions")
    names = [*(str(name) for name in found["client"].values), "the prior"]
    values = np.append(found["contribution"].values, float(found["prior_contribution"]))
    place = np.arange(len(names))
    panel = new_axes(ax, figsize or (width_with_names(names, 4.6), 1.0 + 0.28 * len(names)))
    panel.barh(place, 100 * values, 0.7, color=[*[COLORS[0]] * (len(names) - 1), REFERENCE_LINE], label="information")
    if "rows" in found:
        rows = found["rows"].values / max(1, found["rows"].values.sum())
        panel.scatter(100 * rows, place[:-1], marker="|", s=130, linewidth=2, color=COLORS[1], zorder=3, label="rows")
        legend_above(panel)
    panel.set_yticks(place, short_names(names), fontsize=8)
    panel.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of all, %")
    tidy(panel, grid="x")
    return panel
