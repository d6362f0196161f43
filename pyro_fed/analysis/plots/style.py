"""Colours, axes and legends that all figures share. Colour-blind readers can tell the colours apart.

A figure is drawn once, in the colours for light paper. `DARK` maps each colour to the one on a dark page. On either
page every line has a contrast of at least 3:1, also over the reference's grey area.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation

from pyro_fed.errors import SettingError, listed
from pyro_fed.results.inference_data import InferenceData

#: Okabe and Ito's palette, darkened where a line had a contrast below 3:1 on white. Grey is kept for the reference.
COLORS = ("#0072B2", "#D55E00", "#008A64", "#B8568B", "#A66F00", "#3B3B3B", "#8C6D31", "#5E4FA2")
#: Colours of the reference, for areas and for lines.
REFERENCE, REFERENCE_LINE = "#e3e6ea", "#6f7680"
#: Colours of text and axes, of less important text, and of the grid behind the data.
INK, SOFT, GRID = "#1d2430", "#5c6675", "#ebebeb"

#: Background colours of a light and of a dark page, and the colour on a dark page of each colour for a light page.
PAPER, DARK_PAPER = "#ffffff", "#16191e"
DARK = {
    **dict(zip(COLORS, ("#4DA9E0", "#FF8C42", "#2CC39A", "#E28FBC", "#E0A43A", "#D0D0D0", "#C9A766", "#A79AE8"),
               strict=True)),
    REFERENCE: "#343b46", REFERENCE_LINE: "#9aa4b2", INK: "#e6e9ee", SOFT: "#a5aebb", GRID: "#2b3038",
}  # fmt: skip

#: A logarithmic axis writes numbers up to this, and down to its inverse, with all digits; others as powers of ten.
WRITTEN_OUT = 1e6

#: A logarithmic axis over less than this factor shows few powers of ten: 2, 3 and 5 times a power are written too.
FEW_TICKS_FACTOR = 30.0
#: Largest side of a figure, in inches.
MAX_FIGURE_INCHES = 200.0

#: Axes that a user may pass: one, several, or None for a new figure.
GivenAxes = Axes | np.ndarray | Iterable[Axes] | None


def colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """A colour for each name. The reference is grey; the other colours do not depend on which name it is."""
    chosen = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    return chosen | ({reference: REFERENCE} if reference is not None else {})


def line_colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """A colour for each name, for lines and dots: the reference has a darker grey than in `colors`."""
    return colors(names) | ({reference: REFERENCE_LINE} if reference is not None else {})


def by_name(results: Mapping[str, InferenceData] | InferenceData) -> dict[str, InferenceData]:
    """The results by name; a single result (itself a mapping, of groups) gets the name ""."""
    return {"": results} if isinstance(results, InferenceData) else dict(results)


def check_labels(labels: Sequence[str], known: Sequence[str]) -> None:
    """Check that the parameters that a user asks for exist; SettingError if one does not."""
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise SettingError(f"labels: there are no parameters {unknown}; take some of {listed(known)}")


def tidy(ax: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Remove the frame on the right and above, and draw a light grid for the ticks of an axis behind the data."""
    ax.spines[["right", "top"]].set_visible(False)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)


def new_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The user's axes, or the axes of a new figure of this size in inches."""
    return plt.subplots(figsize=inches(size), layout="constrained")[1] if ax is None else ax


def inches(size: tuple[float, float]) -> tuple[float, float]:
    """Check the width and height of a figure, and return them; SettingError unless in (0, `MAX_FIGURE_INCHES`]."""
    if not all(0 < side <= MAX_FIGURE_INCHES for side in size):
        raise SettingError(
            f"figsize must be two numbers of inches above 0 and at most {MAX_FIGURE_INCHES:g}, received {size}"
        )
    return size


def panels(ax: GivenAxes, count: int, columns: int, size: tuple[float, float], **options: Any) -> np.ndarray:
    """An array (count,) of axes, one a panel: the first of the user's, or those of a new figure with `columns` columns.

    Raises:
        SettingError: `count` is zero, or the user passed fewer axes, or something else than axes.
    """
    if count < 1:
        raise SettingError("expected at least one panel to draw, received none: name parameters, or raise most")
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
    """Draw one legend, of `most` entries a line: above all panels of an own figure, else within the first panel."""
    handles, names = axes[0].get_legend_handles_labels()
    if own:
        axes[0].figure.legend(
            handles, names, loc="outside upper center", ncols=min(most, max(len(names), 1)), frameon=False
        )
    elif names:
        axes[0].legend(handles, names, frameon=False, fontsize=8)


def plain_ticks(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis with all digits, such as 0.01 and 10,000."""
    powers = LogFormatterSciNotation()
    powers.set_axis(axis)

    def write(value: float, _: Any) -> str:
        if value <= 0 or not 1 / WRITTEN_OUT <= value <= WRITTEN_OUT:
            return str(powers(value))
        return f"{value:,.10g}" if np.isclose(np.log10(value) % 1, 0) or np.isclose(np.log10(value) % 1, 1) else ""

    def between(value: float, _: Any) -> str:
        low, high = sorted(axis.get_view_interval())
        digit = f"{value:e}"[0]
        return f"{value:,.10g}" if 0 < high < FEW_TICKS_FACTOR * low and digit in "235" else ""

    axis.set_major_formatter(FuncFormatter(write))
    axis.set_minor_formatter(FuncFormatter(between))
