"""What the figures share: colours that colour-blind readers can tell apart, light grids, no clutter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from pyro_fed.results.inference_data import InferenceData

#: Okabe and Ito's palette, darker where a line had less than 3:1 of contrast on white; grey is kept for the reference.
COLORS = ("#0072B2", "#D55E00", "#008A64", "#B8568B", "#A66F00", "#3B3B3B", "#8C6D31", "#5E4FA2")
REFERENCE = "0.75"


def colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """A colour by name, the same with and without a reference; the reference is grey."""
    chosen = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    return chosen | ({reference: REFERENCE} if reference is not None else {})


def by_name(results: Mapping[str, InferenceData] | InferenceData) -> dict[str, InferenceData]:
    """Results by name, of those or of a single one (an InferenceData is itself a mapping, of groups)."""
    return {"": results} if isinstance(results, InferenceData) else dict(results)


def tidy(ax: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """No frame on the right and above, a light grid behind the data."""
    ax.spines[["right", "top"]].set_visible(False)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(axis=grid, color="0.92", linewidth=0.8)


def new_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure."""
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax
