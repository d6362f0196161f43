"""The number of rows of each client, split by label if the observations are classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, new_axes, short_names, tidy, width_with
from pyro_fed.conventions.calls import checked
from pyro_fed.federation.federation import Federation

#: Each client's name is written at its bar if there are at most this many clients.
MAX_NAMED = 30
#: A name of at most this many letters fits below a bar.
LONGEST_BESIDE = 4


@checked
def plot_partition(
    federation: Federation, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """A bar of each client's number of rows, split by label if the observations are a few classes.

    The bars are horizontal if the clients' names would not fit below vertical bars.

    Args:
        federation: the clients.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes.

    Example:
        >>> pf.plots.plot_partition(fed).figure.savefig("clients.png")
    """
    table = federation.summary()
    labels = [name for name in table.columns if str(name).startswith("label ")]
    labels = labels if len(labels) <= len(COLORS) else []  # too many values, as of counts: colours would repeat
    names = short_names(table.index)
    named = len(names) <= MAX_NAMED
    lying = named and max(map(len, names)) > LONGEST_BESIDE
    upright = (float(np.clip(0.45 * len(names), 4.0, 12.0)), 3.0)
    ax = new_axes(ax, figsize or ((width_with(names, 4.6), 1.2 + 0.28 * len(names)) if lying else upright))
    place, floor = np.arange(len(table)), np.zeros(len(table))
    for i, name in enumerate(labels or ["rows"]):
        size = table[name].to_numpy(dtype=float)
        look: dict[str, Any] = {"color": COLORS[i % len(COLORS)], "label": str(name)}
        if lying:
            ax.barh(place, size, left=floor, height=0.85, **look)
        else:
            ax.bar(place, size, bottom=floor, width=0.85, **look)
        floor += size
    if lying:
        ax.set_yticks(place, names, fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel("rows")
    else:
        if named:
            ax.set_xticks(place, names)
        ax.set_xlabel("client")
        ax.set_ylabel("rows")
    ax.set_title(
        f"{int(table['rows'].sum()):,} rows over {len(table)} clients: {type(federation.partition).__name__}",
        fontsize=10,
    )
    if labels:
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    tidy(ax, grid="x" if lying else "y")
    return ax
