"""What the figures share: colours that colour-blind readers can tell apart, axes, light grids, no clutter.

A figure is drawn once, in the colours for light paper. `DARK` has what each of them is on a dark page: 3:1 of contrast
or more for every line on either, also over the area of the reference, which a test measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation

from pyro_fed.errors import SettingError
from pyro_fed.results.inference_data import InferenceData

#: Okabe and Ito's palette, darker where a line had less than 3:1 of contrast on white; grey is kept for the reference.
COLORS = ("#0072B2", "#D55E00", "#008A64", "#B8568B", "#A66F00", "#3B3B3B", "#8C6D31", "#5E4FA2")
#: The reference: areas, and lines.
REFERENCE, REFERENCE_LINE = "#e3e6ea", "#6f7680"
#: Text and axes; what is less important; the lines behind the data.
INK, SOFT, GRID = "#1d2430", "#5c6675", "#ebebeb"

#: Pages, light and dark, and each colour on the dark one.
PAPER, DARK_PAPER = "#ffffff", "#16191e"
DARK = {
    **dict(zip(COLORS, ("#4DA9E0", "#FF8C42", "#2CC39A", "#E28FBC", "#E0A43A", "#D0D0D0", "#C9A766", "#A79AE8"),
               strict=True)),
    REFERENCE: "#343b46", REFERENCE_LINE: "#9aa4b2", INK: "#e6e9ee", SOFT: "#a5aebb", GRID: "#2b3038",
}  # fmt: skip

#: Widest number that a logarithmic axis writes out, and the narrowest, its inverse: 10,000 and 0.0001.
WRITTEN_OUT = 1e6

#: A logarithmic axis of less than this factor may have no power of ten on it: then 2, 3 and 5 are written too.
NARROW = 30.0
#: Inches of a figure's side at most.
LARGEST = 200.0

#: Axes that a function is given: one, or several.
GivenAxes = Axes | np.ndarray | Iterable[Axes] | None


def colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """A colour by name, the same with and without a reference; the reference is grey."""
    chosen = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    return chosen | ({reference: REFERENCE} if reference is not None else {})


def line_colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """The same for lines and dots, which need a darker grey than areas."""
    return colors(names) | ({reference: REFERENCE_LINE} if reference is not None else {})


def by_name(results: Mapping[str, InferenceData] | InferenceData) -> dict[str, InferenceData]:
    """Results by name, of those or of a single one (an InferenceData is itself a mapping, of groups)."""
    return {"": results} if isinstance(results, InferenceData) else dict(results)


def tidy(ax: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """No frame on the right and above, a light grid behind the data."""
    ax.spines[["right", "top"]].set_visible(False)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)


def new_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure."""
    return plt.subplots(figsize=inches(size), layout="constrained")[1] if ax is None else ax


def inches(size: tuple[float, float]) -> tuple[float, float]:
    """The size of a figure that can be made.

    Raises:
        SettingError: a side that is not positive, or of no end.
    """
    if not all(0 < side <= LARGEST for side in size):
        raise SettingError(f"figsize must be two numbers of inches above 0 and at most {LARGEST:g}, received {size}")
    return size


def panels(ax: GivenAxes, count: int, columns: int, size: tuple[float, float], **options: Any) -> np.ndarray:
    """So many axes: the first of those given, or those of a new figure, which has no others that are seen.

    Args:
        ax: one, or several in any shape; None for a new figure.
        count: how many are drawn on.
        columns: of a new figure.
        size: of a new figure, in inches.
        **options: of `matplotlib.pyplot.subplots`.

    Raises:
        SettingError: fewer are given, or something else; or nothing is to be drawn.
    """
    if count < 1:
        raise SettingError("there is nothing to draw: name parameters, or take most of at least 1")
    if ax is not None:
        given = np.array([ax] if isinstance(ax, Axes) else list(np.asarray(ax, dtype=object).flat), dtype=object)
        if not all(isinstance(one, Axes) for one in given):
            raise SettingError(f"ax: expected axes of matplotlib, received {ax!r:.80}")
        if len(given) < count:
            raise SettingError(f"ax: the figure has {count} panels, and {len(given)} axes were given: pass {count}")
        return given[:count]
    columns = max(1, min(columns, count))
    options = {"layout": "constrained", "squeeze": False, **options}
    _, made = plt.subplots(-(-count // columns), columns, figsize=inches(size), **options)
    for unused in made.flat[count:]:
        unused.set_visible(False)
    return np.array(list(made.flat[:count]), dtype=object)


def legend(axes: np.ndarray, own: bool, most: int = 5) -> None:
    """One legend for all panels: above them on a figure that was made for them, else within the first.

    Args:
        axes: the panels.
        own: whether the figure was made for them.
        most: entries in a line.
    """
    handles, names = axes[0].get_legend_handles_labels()
    if own:
        axes[0].figure.legend(
            handles, names, loc="outside upper center", ncols=min(most, max(len(names), 1)), frameon=False
        )
    elif names:
        axes[0].legend(handles, names, frameon=False, fontsize=8)


def plain_ticks(axis: Axis) -> None:
    """Numbers of a logarithmic axis as people write them: 0.01, 10,000."""
    powers = LogFormatterSciNotation()
    powers.set_axis(axis)

    def write(value: float, _: Any) -> str:
        if value <= 0 or not 1 / WRITTEN_OUT <= value <= WRITTEN_OUT:
            return str(powers(value))
        return f"{value:,.10g}" if np.isclose(np.log10(value) % 1, 0) or np.isclose(np.log10(value) % 1, 1) else ""

    def between(value: float, _: Any) -> str:
        low, high = sorted(axis.get_view_interval())
        digit = f"{value:e}"[0]
        return f"{value:,.10g}" if 0 < high < NARROW * low and digit in "235" else ""

    axis.set_major_formatter(FuncFormatter(write))
    axis.set_minor_formatter(FuncFormatter(between))
