"""Draws of several results over a reference's: marginal densities, two parameters, particles over exact contours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes

from pyro_fed.analysis.judging.distances import thin
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.plots.style import (
    COLORS,
    PLOTTED_DRAWS,
    REFERENCE_LINE,
    GivenAxes,
    by_name,
    check_labels,
    colors,
    legend,
    new_axes,
    panels,
    robust_extent,
    shortened,
    tidy,
)
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError, listed, shown
from pyro_fed.ops.arviz_versions import kde
from pyro_fed.results.inference_data import InferenceData

#: Half-width of a panel, in SDs of the reference. A mean that lies outside is named, or an arrow, at the edge.
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
    results = by_name(results)
    draws, reference, known = read_draws(results, reference)
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


def read_draws(
    results: Mapping[str, InferenceData], reference: str | None
) -> tuple[dict[str, np.ndarray], str, list[str]]:
    """Draws (S, D) by result, the reference's name (by default the first result's), and the D parameters' names."""
    if not results:
        raise SettingError("expected at least one result to draw, received none")
    reference = next(iter(results)) if reference is None else reference
    if reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}: name one of them")
    read = {name: Draws.of(idata) for name, idata in results.items()}
    return {name: draws.flat for name, draws in read.items()}, reference, read[reference].labels


def most_different(
    draws: dict[str, np.ndarray], reference: str, known: list[str], labels: Sequence[str] | None, most: int
) -> list[str]:
    """The parameters to show, in the model's order: the user's `labels`, or those on which the results differ most."""
    if labels is not None:
        check_labels(labels, known)
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


#: If less than this share of a result's draws is within its panel, the panel says where they are.
MIN_INSIDE_SHARE = 0.1


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
    results = by_name(results)
    draws, reference, known = read_draws(results, reference)
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
        values = None if name == reference else thin(draws[name][:, columns], PLOTTED_DRAWS)
        _scatter(panel, thin(truth, PLOTTED_DRAWS), values, palette[name])
        panel.set(xlabel=shortened(chosen[0]), ylabel=shortened(chosen[1]))
        panel.set_title(name, fontsize=10, pad=18 if panel.texts else None)  # above what is said of draws outside
    return axes


def _scatter(ax: Axes, truth: np.ndarray, values: np.ndarray | None, color: str) -> None:
    ax.scatter(truth[:, 0], truth[:, 1], s=7, color=REFERENCE_LINE, alpha=0.5, linewidth=0)
    if values is not None:
        ax.scatter(values[:, 0], values[:, 1], s=9, color=color, alpha=0.8, linewidth=0)
    low, high = truth.mean(0) - PANEL_SDS * truth.std(0), truth.mean(0) + PANEL_SDS * truth.std(0)
    every = truth if values is None else np.concatenate([truth, values])
    low = np.where(every.min(0) > 0, np.maximum(low, 0.0), low)  # all draws are positive: the axis begins at zero
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    if values is not None and np.mean(((values > low) & (values < high)).all(1)) < MIN_INSIDE_SHARE:
        where = "its draws lie outside: means " + ", ".join(f"{one:.3g}" for one in values.mean(0))
        ax.text(0.5, 1.02, where, transform=ax.transAxes, color=color, fontsize=8, ha="center", va="bottom")
    tidy(ax, grid="both")


#: The density is evaluated on a grid of this many points on each axis.
CONTOUR_POINTS = 120
#: The contours enclose these shares of the probability.
CONTOUR_PROBABILITIES = (0.9, 0.5, 0.1)
#: Margin around the particles, as a share of their range.
PARTICLE_MARGIN = 0.35


@checked
def plot_particles(
    idata: InferenceData, log_density: Callable[[torch.Tensor], torch.Tensor] | None = None, *,
    labels: Sequence[str] | None = None, limits: tuple[float, float, float, float] | None = None,
    ax: Axes | None = None, figsize: tuple[float, float] = (4.6, 4.4),
) -> Axes:  # fmt: skip
    """Scatter of two parameters, over contours of the exact posterior if its density is passed.

    The contours enclose 10, 50 and 90 % of the exact posterior.

    Args:
        idata: a result.
        log_density: unnormalised log posterior of points (n, 2) → (n,).
        labels: two parameters, such as `["w[0]", "w[1]"]`; by default the first two.
        limits: (left, right, bottom, top); by default around the particles.
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes.

    Raises:
        SettingError: an unknown parameter, or fewer than two.

    Example:
        >>> pf.plots.plot_particles(pf.run(pf.DSVGD(), fed), labels=["w[0]", "w[1]"])
    """
    read = Draws.of(idata)
    draws, known = read.flat, read.labels
    chosen = known[:2] if labels is None else list(labels)
    if len(chosen) != 2 or not set(chosen) <= set(known):
        raise SettingError(f"plot_particles: expected two parameters of {listed(known)}, received {chosen}")
    xy = draws[:, [known.index(label) for label in chosen]]
    left, right, bottom, top = limits or _limits(xy)
    ax = new_axes(ax, figsize)
    if log_density is not None:
        _contours(ax, log_density, np.linspace(left, right, CONTOUR_POINTS), np.linspace(bottom, top, CONTOUR_POINTS))
    count = f"{len(xy)} {'particles' if idata.attrs.get('draws_are') == 'particles' else 'draws'}"
    outside = int(((xy < (left, bottom)) | (xy > (right, top))).any(1).sum())
    count += f", {outside} outside" if outside else ""
    ax.scatter(xy[:, 0], xy[:, 1], s=14, color=COLORS[1], alpha=0.7, linewidth=0, label=count, zorder=3)
    ax.set(xlim=(left, right), ylim=(bottom, top), xlabel=chosen[0], ylabel=chosen[1])
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    tidy(ax, grid=None)
    return ax


def _limits(xy: np.ndarray) -> tuple[float, float, float, float]:
    middle = np.median(xy, 0)
    reach = np.array([robust_extent(part) for part in (xy - middle).T])
    low, high = np.maximum(xy.min(0), middle - reach), np.minimum(xy.max(0), middle + reach)
    room = PARTICLE_MARGIN * np.maximum(high - low, 1e-12)
    return low[0] - room[0], high[0] + room[0], low[1] - room[1], high[1] + room[1]


def _contours(ax: Axes, log_density: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray, y: np.ndarray) -> None:
    grid = torch.as_tensor(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
    with torch.no_grad():
        found = log_density(grid)
    if not isinstance(found, torch.Tensor) or found.numel() != len(grid):
        raise SettingError(
            f"log_density must return a tensor of {len(grid)} numbers, one for each of the points ({len(grid)}, 2), "
            f"received {shown(found)}"
        )
    log_p = found.double().numpy().reshape(len(y), len(x))
    p = np.exp(log_p - log_p.max())
    falling = np.sort(p.ravel())[::-1]
    enclosed = np.cumsum(falling) / falling.sum()
    levels = sorted({float(falling[np.searchsorted(enclosed, share)]) for share in CONTOUR_PROBABILITIES})
    ax.contourf(x, y, p, levels=[*levels, 1.0 + 1e-9], cmap="Blues", alpha=0.55)
    ax.contour(x, y, p, levels=levels, colors=REFERENCE_LINE, linewidths=0.8)
    ax.plot([], [], color=REFERENCE_LINE, linewidth=0.8, label="10, 50, 90 % of the exact posterior")
