"""Marginal posterior densities of several results, drawn over a reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.judging.distances import posterior_matrix
from pyro_fed.analysis.plots.style import (
    REFERENCE_LINE,
    GivenAxes,
    by_name,
    check_labels,
    colors,
    legend,
    panels,
    shortened,
    tidy,
)
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.ops.arviz_versions import kde
from pyro_fed.results.inference_data import InferenceData

#: Half-width of a panel, in SDs of the reference. A result whose mean lies outside is named at the edge.
PANEL_SDS = 5.0
#: Densities are cut at this many times the reference's height, so that lower ones stay visible. Those that are cut are
#: named at the edge.
MAX_RELATIVE_HEIGHT = 2.5
#: The label of such names, by which they are counted.
EDGE = "_edge"


@checked
def plot_comparison(
    results: Mapping[str, InferenceData] | InferenceData,
    reference: str | None = None,
    *,
    labels: Sequence[str] | None = None,
    most: int = 9,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """A panel for each parameter: the reference's density filled in grey, the densities of other results as lines.

    Args:
        results: InferenceData by name, or a single one.
        reference: name of the result on which the panels are centred; by default the first result.
        labels: parameters to show, such as `["w[0]", "xi"]`; by default those on which the results differ most.
        most: largest number of panels.
        ax: matplotlib axes, one for each panel; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, one for each parameter.

    Raises:
        SettingError: no results, an unknown reference or parameter, or fewer axes than parameters.

    Example:
        >>> (ax,) = pf.plots.plot_comparison({"NUTS": reference, "FedEP": idata}, "NUTS", labels=["w[0]"])
        >>> ax.figure.savefig("posteriors.png")
    """
    results, reference = by_name(results), checked_reference(by_name(results), reference)
    draws = {name: posterior_matrix(idata)[0] for name, idata in results.items()}
    known = posterior_matrix(results[reference])[1]
    shown = most_different(draws, reference, known, labels, most)
    columns = min(3, len(shown))
    size = figsize or (3.4 * columns, 2.2 * -(-len(shown) // columns) + 0.6)
    axes = panels(ax, len(shown), columns, size)
    palette = colors(results, reference)
    for one, label in zip(axes, shown, strict=True):
        column = known.index(label)
        _panel(one, {name: value[:, column] for name, value in draws.items()}, reference, palette)
        one.set_title(shortened(label), fontsize=10)
    legend(axes, ax is None)
    if ax is None:
        axes[0].figure.supylabel("posterior density", fontsize=10)
    return axes


def checked_reference(results: Mapping[str, InferenceData], reference: str | None) -> str:
    """The name of the reference, by default the first result; SettingError for an unknown name."""
    if not results:
        raise SettingError("expected at least one result to draw, received none")
    reference = next(iter(results)) if reference is None else reference
    if reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}: name one of them")
    return reference


def most_different(
    draws: dict[str, np.ndarray], reference: str, known: list[str], labels: Sequence[str] | None, most: int
) -> list[str]:
    """The parameters to show, in the order of the model: the user's `labels`, or those on which results differ most.

    Args:
        draws: draws (S, D) of each result, by name.
        reference: name of the result whose SDs measure the distances of the means.
        known: names of the D parameters.
        labels: parameters that the user asks for; None for those on which results differ most.
        most: largest number of parameters.

    Raises:
        SettingError: the user asks for an unknown parameter.
    """
    if labels is not None:
        check_labels(labels, known)
    if labels is not None:
        return list(labels)[:most]
    mean, sd = draws[reference].mean(0), draws[reference].std(0)
    safe = np.where(sd > 0, sd, np.inf)
    moved = sum(np.minimum(np.abs((value.mean(0) - mean) / safe), PANEL_SDS) for value in draws.values())
    order = np.argsort(-np.asarray(moved), kind="stable")[:most]
    return [known[i] for i in sorted(order)]


def _panel(ax: Axes, draws: dict[str, np.ndarray], reference: str, palette: dict[str, str]) -> None:
    truth = draws[reference]
    low, high = truth.mean() - PANEL_SDS * truth.std(), truth.mean() + PANEL_SDS * truth.std()
    if min(values.min() for values in draws.values()) > 0:  # all draws are positive: no density is drawn below zero
        low = max(low, 0.0)
    grid, density = _density(truth)
    ax.fill_between(grid, density, color=palette[reference], label=f"{reference} (reference)".lstrip(), linewidth=0)
    ax.plot(grid, density, color=REFERENCE_LINE, linewidth=0.8)
    tallest = density.max()
    for name, values in draws.items():
        if name == reference:
            continue
        label, color = name, palette[name]
        if np.ptp(values) == 0:
            ax.axvline(values[0], color=color, label=label, linestyle=":")
            continue
        grid, height = _density(values)
        ax.plot(grid, height, color=color, label=label, linewidth=1.6)
        if not low < values.mean() < high:
            _name_at_edge(ax, f"{shortened(name)} →" if values.mean() > high else f"← {shortened(name)}", color)
            continue
        tallest = max(tallest, height.max())
        if height.max() > MAX_RELATIVE_HEIGHT * density.max():
            _name_at_edge(ax, f"{shortened(name)} ↑", color)
    ax.set_xlim(low, high)
    ax.set_ylim(0, min(1.05 * tallest, MAX_RELATIVE_HEIGHT * density.max()))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    tidy(ax, grid=None)


def _density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density estimate, one SD beyond the draws on either side; for positive draws it begins at zero."""
    room, low = values.std(), values.min()
    return kde(values, max(low - room, 0.0) if low > 0 else low - room, values.max() + room)


def _name_at_edge(ax: Axes, text: str, color: str) -> None:
    """Write a result's name, with an arrow, where its mean lies outside the panel or its density is cut."""
    place, right = sum(one.get_label() == EDGE for one in ax.texts), not text.startswith("←")
    ax.text(
        0.98 if right else 0.02, 0.9 - 0.13 * place, text, transform=ax.transAxes, color=color, fontsize=8,
        ha="right" if right else "left", label=EDGE,
    )  # fmt: skip
