"""Each client's share of the information in the posterior."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, REFERENCE_LINE, legend_above, new_axes, short_names, tidy, width_with
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError, shown


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
    if not {"contribution", "prior_contribution"} <= set(getattr(found, "data_vars", ())):
        raise SettingError(
            f"plot_contributions takes the dataset that pf.contributions returns, received {shown(found)}"
        )
    names = [*(str(name) for name in found["client"].values), "the prior"]
    values = np.append(found["contribution"].values, float(found["prior_contribution"]))
    place = np.arange(len(names))
    panel = new_axes(ax, figsize or (width_with(names, 4.6), 1.0 + 0.28 * len(names)))
    panel.barh(place, 100 * values, 0.7, color=[*[COLORS[0]] * (len(names) - 1), REFERENCE_LINE], label="information")
    if "rows" in found:
        rows = found["rows"].values / max(1, found["rows"].values.sum())
        panel.scatter(100 * rows, place[:-1], marker="|", s=130, linewidth=2, color=COLORS[1], zorder=3, label="rows")
        legend_above(panel)
    panel.set_yticks(place, short_names(names), fontsize=8)
    panel.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of all, %")
    tidy(panel, grid="x")
    return panel
