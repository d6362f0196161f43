"""Kaplan-Meier curves by site and overall."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import legend_above, line_colors, new_axes, shortened, tidy
from pyro_fed.codebook.survival import SurvivalTable
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL


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
