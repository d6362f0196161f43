"""Forest plots: intervals of parameters of several results beside a reference's, or of each client beside all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from pyro_fed.analysis.plots.comparison import PANEL_SDS, most_different, read_draws
from pyro_fed.analysis.plots.style import (
    COLORS,
    INNER_90,
    REFERENCE,
    REFERENCE_LINE,
    GivenAxes,
    by_name,
    check_dataset,
    check_labels,
    legend_above,
    line_colors,
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
from pyro_fed.results.inference_data import InferenceData

#: Quantiles of the draws at the ends of the thin line (94 %, as in tables) and of the thick line (the middle half).
OUTER, INNER = (0.03, 0.97), (0.25, 0.75)
#: Right ends of the written columns, in points from the axes.
COLUMN_ENDS = (105, 155)
#: SDs on either side of a client's mean that hold 90 % of a Gaussian.
CLIENT_SDS = NormalDist().inv_cdf(INNER_90[1])


@checked
def plot_forest(
    results: Mapping[str, InferenceData] | InferenceData,
    reference: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    most: int = 60,
    standardise: bool | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """The 94 % interval of every parameter, with a line for each result, beside the reference's.

    Args:
        results: InferenceData by name, or a single one.
        reference: name of the result drawn as a grey band; by default the first result.
        labels: parameters to show, such as `["w[0]", "xi"]`; by default all, or those on which results differ most.
        most: largest number of parameters shown.
        standardise: show each parameter as its distance from the reference's mean, in the reference's SDs, so that
            parameters of any size fit in one figure. If False, parameters have their own units. By default True if
            there are several results.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes. A dot is a mean, a thick line the middle half of the draws, a thin one 94 %; an arrow at the edge a
        mean that lies outside.

    Raises:
        SettingError: no results, or an unknown reference or parameter.

    Example:
        >>> pf.plots.plot_forest({"NUTS": reference, "FedEP": idata}, "NUTS")
    """
    results = by_name(results)
    draws, reference, known = read_draws(results, reference)
    shown = most_different(draws, reference, known, labels, most)
    columns = [known.index(label) for label in shown]
    others = [name for name in results if name != reference]
    standardise = bool(others) if standardise is None else standardise
    truth = draws[reference][:, columns]
    centre, scale = np.zeros(len(shown)), np.ones(len(shown))
    if standardise:
        centre, scale = truth.mean(0), np.where(truth.std(0) > 0, truth.std(0), 1.0)
    step = max(1, len(others))
    panel = new_axes(ax, figsize or (width_with_names(shown, 4.8), 1.0 + 0.13 * (step + 0.8) * max(len(shown), 4)))
    place = np.arange(len(shown), dtype=float)
    if others:
        _band(panel, (truth - centre) / scale, place, f"{reference} (reference)")
    palette = line_colors(results, reference if others else None)
    each = {name: (draws[name][:, columns] - centre) / scale for name in others or [reference]}
    ends = [np.quantile(values, OUTER, axis=0) for values in each.values()]
    if standardise:  # as far as half of the results need
        reaches = sorted(float(np.abs(one).max()) for one in ends)
        inside = np.abs(np.quantile((truth - centre) / scale, OUTER, axis=0)).max()
        widest = min(PANEL_SDS, 1.15 * max(inside, reaches[(len(reaches) - 1) // 2]))
        panel.set_xlim(-widest, widest)
    else:
        panel.set_xlim(*_room(np.min(ends), np.max(ends)))
    for i, (name, values) in enumerate(each.items()):
        _intervals(panel, values, place + 0.64 * ((i + 0.5) / step - 0.5), palette[name], name)
    panel.set_yticks(place, short_names(shown), fontsize=8)
    panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.set_xlabel("SDs of the reference from its mean" if standardise else "value")
    if len(results) > 1:
        legend_above(panel)
    tidy(panel, grid="x")
    return panel


def _band(ax: Axes, values: np.ndarray, place: np.ndarray, name: str) -> None:
    low, high = np.quantile(values, OUTER, axis=0)
    ax.barh(place, high - low, 0.8, left=low, color=REFERENCE, label=name)
    ax.vlines(values.mean(0), place - 0.4, place + 0.4, color=REFERENCE_LINE, linewidth=1)


def _room(low: float, high: float) -> tuple[float, float]:
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _intervals(ax: Axes, values: np.ndarray, place: np.ndarray, color: str, name: str) -> None:
    mean, limits = values.mean(0), ax.get_xlim()
    for quantiles, width in ((OUTER, 0.9), (INNER, 2.4)):
        low, high = np.clip(np.quantile(values, quantiles, axis=0), *limits)
        ax.hlines(place, low, high, color=color, linewidth=width)
    ax.scatter(mean, place, s=9, color=color, zorder=3, label=name)
    ax.set_xlim(limits)
    mark_outside(ax, mean, place, color)


@checked
def plot_client_forest(
    found: xr.Dataset,
    *,
    labels: Sequence[str] | None = None,
    most: int = 6,
    annotate: bool = False,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """For each parameter, the posterior of each client alone over the posterior of all, as in a meta-analysis.

    Args:
        found: the dataset returned by `pyro_fed.contributions`.
        labels: parameters, a panel each; by default those on which clients differ most.
        most: largest number of panels.
        annotate: write each client's mean, 90 % interval and weight beside its line, and those of all clients below,
            with a diamond, as published forests have them.
        ax: matplotlib axes, one for each panel; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, one a parameter, on the unconstrained scale: the mean with 90 % of each client alone, dots by the
        size of its weight, which is its share of the information, and the grey band of all.

    Raises:
        SettingError: `found` is something else, or there is an unknown parameter.

    Example:
        >>> pf.plots.plot_client_forest(pf.contributions(idata), labels=["w[0]"], annotate=True)
    """
    check_dataset(found, {"share", "mean", "sd", "all_mean", "all_sd"}, "plot_client_forest", "pf.contributions")
    known = [str(name) for name in found["parameter"].values]
    check_labels(() if labels is None else labels, known)
    labels = most_disputed(found, most) if labels is None else labels
    clients = [str(name) for name in found["client"].values]
    columns = min(1 if annotate else 3, len(labels))
    height = 0.8 + 0.24 * (max(len(clients), 3) + 2 * annotate)
    width = 6.4 if annotate else 3.4 * columns
    axes = panels(ax, len(labels), columns, figsize or (width, height * -(-len(labels) // columns)))
    for panel, label in zip(axes, labels, strict=True):
        one = found.isel(parameter=known.index(label))
        _one_parameter(panel, one, clients)
        if annotate:
            _write_columns(panel, one, clients)
        panel.set_title(shortened(label), fontsize=10, loc="left" if annotate else "center")
        panel.set_xlabel("unconstrained (log, if positive)", fontsize=8)
    return axes


def most_disputed(found: xr.Dataset, most: int) -> list[str]:
    """The parameters on which single clients differ most from all together, in their own SDs, in the model's order."""
    far = np.abs(found["mean"].values - found["all_mean"].values) / found["sd"].values
    order = np.argsort(-np.where(np.isfinite(far), far, 0.0).max(0), kind="stable")
    return [str(found["parameter"].values[i]) for i in sorted(order[:most])]


def _one_parameter(ax: Axes, one: xr.Dataset, clients: list[str]) -> None:
    place = np.arange(len(clients))
    mean, sd = one["mean"].values, one["sd"].values
    centre, width = float(one["all_mean"]), CLIENT_SDS * float(one["all_sd"])
    ax.axvspan(centre - width, centre + width, color=REFERENCE, linewidth=0, label="all clients")
    ax.axvline(centre, color=REFERENCE_LINE, linewidth=1)
    known = np.isfinite(mean) & np.isfinite(sd)
    ax.hlines(place[known], (mean - CLIENT_SDS * sd)[known], (mean + CLIENT_SDS * sd)[known], color=COLORS[0], lw=1.2)
    area = 10 + 160 * np.clip(one["share"].values[known], 0, 1)
    ax.scatter(mean[known], place[known], s=area, color=COLORS[0], zorder=3)
    ax.set_yticks(place, short_names(clients), fontsize=8)
    ax.set_ylim(len(clients) - 0.5, -0.5)
    reach = max(width, robust_extent(np.abs(mean[known] - centre) + CLIENT_SDS * sd[known]))
    ax.set_xlim(centre - 1.05 * reach, centre + 1.05 * reach)
    mark_outside(ax, mean[known], place[known], COLORS[0])
    tidy(ax, grid="x")


def _write_columns(ax: Axes, one: xr.Dataset, clients: list[str]) -> None:
    """Means, intervals and weights as text on the right of the axes, and a line for all clients with the prior."""
    names = [*clients, "all, with the prior"]
    mean = np.append(one["mean"].values, one["all_mean"])
    half = CLIENT_SDS * np.append(one["sd"].values, one["all_sd"])
    weight = [f"{100 * share:.0f} %" for share in one["share"].values]
    weight.append(f"prior {100 * float(one['prior_share']):.0f} %")
    ends = [(mean[-1] - half[-1], len(clients)), (mean[-1], len(clients) - 0.3)]
    ends += [(mean[-1] + half[-1], len(clients)), (mean[-1], len(clients) + 0.3)]
    ax.add_patch(Polygon(ends, facecolor=REFERENCE_LINE, edgecolor="none", zorder=3))
    ax.set_yticks(np.arange(len(names)), names, fontsize=8)
    ax.set_ylim(len(names) - 0.5, -0.5)
    lines = [("mean [90 %]", "weight")]
    for centre, width, share in zip(mean, half, weight, strict=True):
        known = np.isfinite(centre) and np.isfinite(width)
        text = f"{centre:.2f} [{centre - width:.2f}, {centre + width:.2f}]" if known else "improper alone"
        lines.append((text, share))
    beside: dict[str, Any] = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
    for row, texts in enumerate(lines, -1):
        for text, right in zip(texts, COLUMN_ENDS, strict=True):
            place: dict[str, Any] = {
                "xytext": (right, 0),
                "ha": "right",
                "va": "center",
                "fontsize": 8,
                "annotation_clip": False,
            }
            ax.annotate(text, (1, row), **beside, **place)
