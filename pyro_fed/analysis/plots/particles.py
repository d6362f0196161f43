"""Particles or draws of two parameters over contours of the exact density (as in Kassab and Simeone, Fig. 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes

from pyro_fed.analysis.judging.distances import posterior_matrix
from pyro_fed.analysis.plots.style import COLORS, REFERENCE_LINE, new_axes, tidy, usual_reach
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError, listed, shown
from pyro_fed.results.inference_data import InferenceData

#: The density is evaluated on a grid of this many points on each axis.
GRID = 120
#: The contours enclose these shares of the probability.
SHARES = (0.9, 0.5, 0.1)
#: Margin around the particles, as a share of their range.
MARGIN = 0.35


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
    draws, known = posterior_matrix(idata)
    chosen = known[:2] if labels is None else list(labels)
    if len(chosen) != 2 or not set(chosen) <= set(known):
        raise SettingError(f"plot_particles: expected two parameters of {listed(known)}, received {chosen}")
    xy = draws[:, [known.index(label) for label in chosen]]
    left, right, bottom, top = limits or _limits(xy)
    ax = new_axes(ax, figsize)
    if log_density is not None:
        _contours(ax, log_density, np.linspace(left, right, GRID), np.linspace(bottom, top, GRID))
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
    reach = np.array([usual_reach(part) for part in (xy - middle).T])
    low, high = np.maximum(xy.min(0), middle - reach), np.minimum(xy.max(0), middle + reach)
    room = MARGIN * np.maximum(high - low, 1e-12)
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
    levels = sorted({float(falling[np.searchsorted(enclosed, share)]) for share in SHARES})
    ax.contourf(x, y, p, levels=[*levels, 1.0 + 1e-9], cmap="Blues", alpha=0.55)
    ax.contour(x, y, p, levels=levels, colors=REFERENCE_LINE, linewidths=0.8)
    ax.plot([], [], color=REFERENCE_LINE, linewidth=0.8, label="10, 50, 90 % of the exact posterior")
