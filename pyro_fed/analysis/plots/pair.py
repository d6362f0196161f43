"""Draws of two parameters against each other, each result over the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.judging.distances import posterior_matrix, thin
from pyro_fed.analysis.plots.comparison import PANEL_SDS, checked_reference, most_different
from pyro_fed.analysis.plots.style import REFERENCE_LINE, GivenAxes, by_name, colors, panels, shortened, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError, listed
from pyro_fed.results.inference_data import InferenceData

#: Number of draws shown, evenly spaced: more would hide each other, and make a large file.
SHOWN = 300
#: If less than this share of a result's draws is within its panel, the panel says where they are.
LEAST_INSIDE = 0.1


@checked
def plot_pair(
    results: Mapping[str, InferenceData] | InferenceData,
    reference: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """Draws of two parameters, with a panel for each result, over the draws of the reference.

    Args:
        results: InferenceData by name, or a single one.
        reference: name of the result drawn in grey; by default the first result.
        labels: two parameters; by default those on which results differ most.
        ax: matplotlib axes, one for each result but the reference; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, one a result; of a reference alone, one.

    Raises:
        SettingError: no results, an unknown reference or parameter, or not two of them.

    Example:
        >>> pf.plots.plot_pair({"NUTS": reference, "FedEP": idata}, "NUTS", labels=["w[0]", "xi"])
    """
    results, reference = by_name(results), checked_reference(by_name(results), reference)
    draws = {name: posterior_matrix(idata)[0] for name, idata in results.items()}
    known = posterior_matrix(results[reference])[1]
    chosen = most_different(draws, reference, known, labels, 2)
    asked = chosen if labels is None else list(labels)
    if len(chosen) != 2 or len(asked) != 2:
        raise SettingError(f"plot_pair: expected two parameters of {listed(known)}, received {asked}")
    columns = [known.index(label) for label in chosen]
    others = [name for name in results if name != reference] or [reference]
    wide = min(3, len(others))
    axes = panels(ax, len(others), wide, figsize or (3.2 * wide, 2.9 * -(-len(others) // wide)))
    truth, palette = draws[reference][:, columns], colors(results)
    for panel, name in zip(axes, others, strict=True):
        values = None if name == reference else thin(draws[name][:, columns], SHOWN)
        _scatter(panel, thin(truth, SHOWN), values, palette[name])
        panel.set(xlabel=shortened(chosen[0]), ylabel=shortened(chosen[1]))
        panel.set_title(name, fontsize=10)
    return axes


def _scatter(ax: Axes, truth: np.ndarray, values: np.ndarray | None, color: str) -> None:
    ax.scatter(truth[:, 0], truth[:, 1], s=7, color=REFERENCE_LINE, alpha=0.5, linewidth=0)
    if values is not None:
        ax.scatter(values[:, 0], values[:, 1], s=9, color=color, alpha=0.8, linewidth=0)
    low, high = truth.mean(0) - PANEL_SDS * truth.std(0), truth.mean(0) + PANEL_SDS * truth.std(0)
    every = truth if values is None else np.concatenate([truth, values])
    low = np.where(every.min(0) > 0, np.maximum(low, 0.0), low)  # all draws are positive: the axis begins at zero
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    if values is not None and np.mean(((values > low) & (values < high)).all(1)) < LEAST_INSIDE:
        where = "its draws lie outside: means " + ", ".join(f"{one:.3g}" for one in values.mean(0))
        ax.text(0.5, 0.96, where, transform=ax.transAxes, color=color, fontsize=8, ha="center", va="top")
    tidy(ax, grid="both")
