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

from pyro_fed.errors import SettingError, listed, shown
from pyro_fed.results.inference_data import InferenceData

#: Okabe and Ito's palette, darkened where a line had a contrast below 3:1 on white. Grey is kept for the reference.
COLORS = ("#0072B2", "#D55E00", "#008A64", "#B8568B", "#A66F00", "#3B3B3B", "#8C6D31", "#5E4FA2")
#: Markers of results of the same colour, where there are more results than colours.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
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

#: An axis reaches to the largest value that is at most this many times the median; larger ones are drawn at its edge.
AXIS_REACH = 6.0
#: Largest number of marks that can be distinguished: dots of rounds on a line, numbers in a graph's nodes, bars of
#: clients.
MAX_MARKS = 40
#: Draws of a path or of a scatter, evenly spaced: more would hide each other, and make a large file.
PLOTTED_DRAWS = 300
#: The interval of 90 % goes from the first to the second of these quantiles.
INNER_90 = (0.05, 0.95)
#: Largest side of a figure, in inches.
MAX_FIGURE_INCHES = 200.0

#: Axes that a user may pass: one, several, or None for a new figure.
GivenAxes = Axes | np.ndarray | Iterable[Axes] | None


def colors(names: Iterable[str], reference: str | None = None, grey: str = REFERENCE) -> dict[str, str]:
    """A colour for each name. The reference is grey; the other colours do not depend on which name it is."""
    chosen = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    return chosen | ({reference: grey} if reference is not None else {})


def line_colors(names: Iterable[str], reference: str | None = None) -> dict[str, str]:
    """A colour for each name, for lines and dots: the reference has a darker grey than in `colors`."""
    return colors(names, reference, REFERENCE_LINE)


def by_name(results: Mapping[str, InferenceData] | InferenceData) -> dict[str, InferenceData]:
    """The results by name; a single result (itself a mapping, of groups) gets the name ""."""
    return {"": results} if isinstance(results, InferenceData) else dict(results)


def check_labels(labels: Sequence[str], known: Sequence[str]) -> None:
    """Check that the parameters that a user asks for exist; SettingError if one does not."""
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise SettingError(f"labels: there are no parameters {unknown}; take some of {listed(known)}")


def check_dataset(found: Any, needed: set[str], plot: str, source: str) -> None:
    """SettingError unless `plot` was called with the dataset that `source` returns, which has the needed variables."""
    if not needed <= set(getattr(found, "data_vars", ())):
        raise SettingError(f"{plot} takes the dataset that {source} returns, received {shown(found)}")


def tidy(ax: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Remove the frame on the right and above, and draw a light grid for the ticks of an axis behind the data."""
    ax.spines[["right", "top"]].set_visible(False)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)


def new_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The user's axes, or the axes of a new figure of this size in inches."""
    return plt.subplots(figsize=checked_size(size), layout="constrained")[1] if ax is None else ax


def checked_size(size: tuple[float, float]) -> tuple[float, float]:
    """Check the width and height of a figure, and return them; SettingError unless in (0, `MAX_FIGURE_INCHES`]."""
    if not all(0 < side <= MAX_FIGURE_INCHES for side in size):
        raise SettingError(
            f"figsize must be two numbers of inches above 0 and at most {MAX_FIGURE_INCHES:g}, received {size}"
        )
    return size


def panels(ax: GivenAxes, count: int, columns: int, size: tuple[float, float], **options: Any) -> np.ndarray:
    """Axes (count,), one a panel: the first of the user's, or those of a new figure with so many `columns`."""
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
    _, made = plt.subplots(-(-count // columns), columns, figsize=checked_size(size), **options)
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


def shortened(name: object, most: int = 26) -> str:
    """A name of a client or parameter as a figure has room for it: beginning and end, at most `most` letters."""
    text = str(name)
    end = most // 2
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def short_names(names: Iterable[object]) -> list[str]:
    """Names as `shortened` has them; where two are then alike, without the beginning that all have in common."""
    texts = [str(name) for name in names]
    short = [shortened(text) for text in texts]
    if len(set(short)) == len(set(texts)):
        return short
    alike = next((i for i, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), 0)
    common = texts[0][:alike].rpartition(" ")[0]
    apart = [shortened(f"…{text.removeprefix(common)}") for text in texts]
    return apart if len(set(apart)) > len(set(short)) else short


def robust_extent(values: np.ndarray) -> float:
    """How far an axis reaches, so that a few values far from zero do not flatten the others: see `AXIS_REACH`."""
    sizes = np.sort(np.abs(values[np.isfinite(values)]))
    return float(sizes[sizes <= AXIS_REACH * sizes[len(sizes) // 2]].max()) if len(sizes) else 0.0


def mark_outside(ax: Axes, values: np.ndarray, place: np.ndarray, color: str, *, beyond: bool = False) -> None:
    """Mark values outside a horizontal axis by arrows and numbers: within its edge, or `beyond` the right one."""
    low, high = ax.get_xlim()
    for value, at in zip(values, place, strict=True):
        if low <= value <= high or not np.isfinite(value):
            continue
        right = value > high
        arrow, number = (1.02, 1.04) if beyond else (0.985, 0.965) if right else (0.015, 0.035)
        side = "left" if beyond or not right else "right"
        edge: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "color": color, "clip_on": False, "zorder": 3}
        ax.scatter(arrow, at, s=22, marker=">" if right else "<", linewidth=0, **edge)
        ax.text(number, at, f"{value:.3g}", fontsize=6, ha=side, va="center", **edge)


def legend_above(ax: Axes, columns: int = 3) -> None:
    """Draw a legend above an axes, narrow enough for a small figure."""
    ax.legend(
        fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, columnspacing=1.0,
        handletextpad=0.4, handlelength=1.2,
    )  # fmt: skip


def width_with_names(names: Iterable[object], least: float) -> float:
    """The width of a figure, in inches, with room for names at its left."""
    return max(least, 3.2 + 0.075 * max((len(shortened(name)) for name in names), default=0))
