"""Reliability plots: accuracy by confidence (Kassab and Simeone, Appendix A.3), and observed by predicted shares.

`plot_kaplan_meier` has the curves of survival by site.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from torch import Tensor

from pyro_fed.analysis.judging import metrics
from pyro_fed.analysis.judging.calibration import BINS, calibration_errors, reliability
from pyro_fed.analysis.judging.density import thin_posterior
from pyro_fed.analysis.judging.distances import MAX_COMPARED_DRAWS
from pyro_fed.analysis.plots.style import (
    REFERENCE_LINE,
    SOFT,
    GivenAxes,
    by_name,
    colors,
    legend_above,
    line_colors,
    new_axes,
    panels,
    shortened,
    tidy,
)
from pyro_fed.codebook.survival import SurvivalTable
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import unconstrained_draws


@checked
def plot_reliability(
    results: Mapping[str, InferenceData] | InferenceData,
    federation: Federation,
    test: tuple[Any, ...],
    *,
    bins: int = BINS,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """Accuracy against confidence on test data, with a panel for each result. A dot's area is its number of rows.

    On the diagonal a prediction of confidence 0.8 is right four times in five. A result below the diagonal is too sure
    of itself, a result above it too cautious.

    Args:
        results: InferenceData by name, or a single one.
        federation: the federation of the runs.
        test: the model's arguments for the test data, observations included.
        bins: number of bins of confidence.
        ax: matplotlib axes, one for each result; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, one for each result.

    Raises:
        SettingError: the observations are no classes, or there are fewer axes than results.

    Example:
        >>> (ax,) = pf.plots.plot_reliability({"FedEP": idata}, fed, (x_test, y_test))
    """
    results = by_name(results)
    columns = min(4, len(results))
    size = figsize or (2.7 * columns + 0.5, 2.9 * -(-len(results) // columns) + 0.3)
    axes = panels(ax, len(results), columns, size, sharex=True, sharey=True)
    palette = colors(results)
    for one, (name, idata) in zip(axes, results.items(), strict=True):
        draws = unconstrained_draws(thin_posterior(idata, MAX_COMPARED_DRAWS), federation.problem)
        found = metrics.predict_rows(federation.problem, draws, test)
        if found.probs is None:
            raise SettingError(
                "plot_reliability takes test data whose observations are classes, received observations that are "
                "numbers: pf.compare has their RMSE and log density"
            )
        _panel(one, found.probs, found.value, bins, palette[name])
        errors = calibration_errors(found.probs, found.value, bins)
        one.set_title(f"{shortened(name)}\nECE {errors['ece']:.3f}, MCE {errors['mce']:.2f}".strip(), fontsize=10)
    if ax is None:
        axes[0].figure.supxlabel("confidence of the prediction", fontsize=10)
        axes[0].figure.supylabel("share that was right", fontsize=10)
    return axes


@checked
def plot_calibration(table: pd.DataFrame, *, ax: Axes | None = None, figsize: tuple[float, float] = (3.9, 4.1)) -> Axes:
    """Observed against predicted shares of each client, and of all clients in black with 95 % limits.

    Args:
        table: of `pf.metrics.calibration_table`.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes. On the dashed diagonal predictions are right.

    Raises:
        SettingError: the table is another one.

    Example:
        >>> found = pf.estimand(idata, fed, by={"predicted": [0.25, 0.5, 0.75, 1.0]})
        >>> pf.plots.plot_calibration(pf.metrics.calibration_table(found))
    """
    needed = ["client", "predicted", "observed", "lower", "upper"]
    if missing := [name for name in needed if name not in table]:
        raise SettingError(
            f"plot_calibration takes a table of pf.metrics.calibration_table, but this one lacks {missing}"
        )
    panel = new_axes(ax, figsize)
    panel.plot([0, 1], [0, 1], color=REFERENCE_LINE, linewidth=1, linestyle="--", zorder=1)
    clients = list(dict.fromkeys(map(str, table["client"])))
    palette = line_colors(clients, OVERALL)
    for client in clients:
        x, y, lower, upper = (table.loc[table["client"] == client, name].to_numpy(float) for name in needed[1:])
        if client == OVERALL:
            panel.errorbar(x, y, (y - lower, upper - y), color=palette[client], fmt="o-", capsize=2, label=client)
        else:
            panel.plot(
                x, y, "o-", color=palette[client], alpha=0.6, markersize=3, linewidth=0.8, label=shortened(client)
            )
    panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted", ylabel="observed")
    tidy(panel, grid="both")
    legend_above(panel)
    return panel


def _panel(ax: Axes, probs: Tensor, value: Tensor, bins: int, color: str) -> None:
    chance = 1 / probs.shape[1]
    points = reliability(probs, value, bins)
    ax.plot([0, 1], [0, 1], color=REFERENCE_LINE, linewidth=1, linestyle="--", zorder=1)
    ax.plot(points.confidence, points.accuracy, color=color, linewidth=1, alpha=0.6)
    area = 12 + 250 * points.rows / len(value)
    ax.scatter(points.confidence, points.accuracy, s=area, color=color, alpha=0.8, zorder=3, clip_on=False)
    for x, y, rows, size in zip(points.confidence, points.accuracy, points.rows, area, strict=True):
        gap = 4 + size**0.5 / 2
        offset, side = ((0, -gap), "top") if y > 0.5 else ((0, gap), "bottom")
        text: dict[str, Any] = {"ha": "center", "va": side, "fontsize": 7, "color": SOFT}
        ax.annotate(f"{rows}", (x, y), xytext=offset, textcoords="offset points", **text)
    ax.set_xlim(min(chance, 0.5) - 0.02, 1.02)
    ax.set_ylim(0, 1.04)
    tidy(ax, grid="both")


@checked
def plot_kaplan_meier(
    curves: SurvivalTable, *, ax: Axes | None = None, figsize: tuple[float, float] = (5.2, 3.6)
) -> Axes:
    """Kaplan-Meier curves of each site, and of all sites in black with 95 % limits.

    Args:
        curves: of `pf.codebook.kaplan_meier`.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, with a line for each site.

    Example:
        >>> pf.plots.plot_kaplan_meier(pf.codebook.kaplan_meier(summaries))
    """
    panel = new_axes(ax, figsize)
    sites = [str(site) for site in curves.frame["site"].unique()]
    palette = line_colors(sites, OVERALL)
    for site in sites:
        one, is_all = curves.frame[curves.frame["site"] == site], site == OVERALL
        time, survival = np.append(0.0, one["time"]), np.append(1.0, one["survival"])
        width = 2.2 if is_all else 1.2
        panel.step(time, survival, where="post", color=palette[site], linewidth=width, label=shortened(site))
        if is_all:
            lower, upper = (np.append(1.0, one[name]) for name in ("lower", "upper"))
            panel.fill_between(time, lower, upper, step="post", color=palette[site], alpha=0.15, linewidth=0)
    panel.set_ylim(0, 1.02)
    panel.set_xlim(left=0)
    panel.set_xlabel(f"time, {curves.unit}" if curves.unit else "time")
    panel.set_ylabel("survival")
    tidy(panel, grid="y")
    legend_above(panel)
    return panel
