"""Who holds what: the rows of each client, by label where there are labels."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, new_axes, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.federation.federation import Federation

#: Clients up to which each has its name below its bar.
MAX_NAMED = 30


@checked
def plot_partition(
    federation: Federation, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """A bar a client, as high as it has rows, split by label where the observations are classes.

    Args:
        federation: the clients.
        ax: matplotlib axes; a new figure by default.
        figsize: of a new figure, in inches.

    Returns:
        The axes.

    Example:
        >>> pf.plot_partition(fed).figure.savefig("clients.png")
    """
    width = float(np.clip(0.45 * federation.num_clients, 4.0, 12.0))
    ax = new_axes(ax, figsize or (width, 3.0))
    table = federation.summary()
    labels = [name for name in table.columns if str(name).startswith("label ")]
    place, floor = np.arange(len(table)), np.zeros(len(table))
    for i, name in enumerate(labels or ["rows"]):
        height = table[name].to_numpy(dtype=float)
        ax.bar(place, height, bottom=floor, width=0.85, color=COLORS[i % len(COLORS)], label=str(name))
        floor += height
    if len(table) <= MAX_NAMED:
        ax.set_xticks(place, [str(name) for name in table.index])
    ax.set_xlabel("client")
    ax.set_ylabel("rows")
    ax.set_title(
        f"{int(table['rows'].sum()):,} rows over {len(table)} clients: {type(federation.partition).__name__}",
        fontsize=10,
    )
    if labels:
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    tidy(ax)
    return ax
