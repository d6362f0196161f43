"""The error of each result against the bytes that it cost."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from pyro_fed.analysis.numbers import readable_bytes
from pyro_fed.analysis.plots.style import REFERENCE_LINE, line_colors, name_dots, new_axes, plain_ticks, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.errors import SettingError


@checked
def plot_cost(
    table: pd.DataFrame,
    error: str = "mean_error",
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] = (4.6, 3.2),
) -> Axes:
    """The error of each result against the bytes that its clients sent and received.

    Args:
        table: the table of `pyro_fed.compare` with a reference.
        error: a column of it, such as "mean_error" or "ksd".
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, both logarithmic, with a named dot for each result. Below the dashed line the mean error is small
        enough.

    Raises:
        SettingError: the table lacks the column, or no result has both.

    Example:
        >>> pf.plots.plot_cost(pf.compare(results, "NUTS", federation=fed))
    """
    needed = {error, "bytes_up", "bytes_down"}
    if not needed <= set(table.columns):
        raise SettingError(
            f"plot_cost takes a table of pf.compare with the columns {sorted(needed)}, received one without "
            f"{sorted(needed - set(table.columns))}: compare the results with a reference"
        )
    sent = (table["bytes_up"] + table["bytes_down"]).to_numpy(dtype=float)
    wrong = table[error].to_numpy(dtype=float)
    known = np.isfinite(sent) & np.isfinite(wrong) & (sent > 0) & (wrong > 0)
    if not known.any():
        raise SettingError(
            f"plot_cost needs at least one result of a federated run with a positive {error}, received none: a "
            "reference sends no bytes"
        )
    panel = new_axes(ax, figsize)
    palette = line_colors([str(name) for name in table.index])
    panel.set(xscale="log", yscale="log")
    names = [str(name) for name in table.index[known]]
    panel.scatter(sent[known], wrong[known], s=34, color=[palette[name] for name in names], zorder=3)
    if error == "mean_error":
        panel.axhline(MATTERS, color=REFERENCE_LINE, linewidth=1, linestyle="--")
    panel.margins(x=0.15, y=0.2)
    plain_ticks(panel.yaxis)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable_bytes(value).replace(".0 ", " ")))
    panel.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    panel.set_xlabel("sent and received by all clients")
    panel.set_ylabel("mean error, reference SDs" if error == "mean_error" else error)
    tidy(panel, grid="both")
    name_dots(panel, names, sent[known], wrong[known], palette)
    return panel
