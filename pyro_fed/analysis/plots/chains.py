"""Markov chains: their paths, and the ranks of their draws, which show chains that disagree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import rankdata

from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.plots.style import COLORS, REFERENCE_LINE, GivenAxes, check_labels, panels, shortened, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.ops.arviz_versions import rhat
from pyro_fed.results.inference_data import InferenceData

#: Bins of the histograms of ranks.
BINS = 20
#: Number of draws of a chain in its path, evenly spaced.
SHOWN = 400


@checked
def plot_chains(
    idata: InferenceData,
    *,
    labels: Sequence[str] | None = None,
    most: int = 2,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """A row of two panels for each parameter: the chains' paths, and histograms of each chain's ranks in all draws.

    Args:
        idata: a result whose draws are Markov chains.
        labels: parameters, such as `["w[0]"]`; by default those whose chains differ most (R-hat).
        most: largest number of parameters shown.
        ax: matplotlib axes, two for each parameter; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes (parameter, 2). Ranks of chains that agree are flat, at the grey line.

    Raises:
        SettingError: draws that are no chains, an unknown parameter, or fewer axes than two a parameter.

    Example:
        >>> pf.plots.plot_chains(pf.run(pf.NUTS(), fed), labels=["w[0]"])
    """
    draws = Draws.of(idata, sorted(map(str, idata["posterior"].data_vars)))
    if draws.kind not in ("chains", ""):
        raise SettingError(
            f"plot_chains takes a result whose draws are Markov chains, received one whose draws are {draws.kind}, "
            "which have no order: see pf.plots.plot_comparison or pf.plots.plot_forest"
        )
    check_labels(() if labels is None else labels, draws.labels)
    if labels is None:
        worst = np.argsort(-np.nan_to_num(rhat(draws.values), nan=0.0), kind="stable")[:most]
        labels = [draws.labels[i] for i in worst]
    labels = list(labels)[:most]
    size = figsize or (7.2, 2.2 * len(labels) + 0.3)
    axes = panels(ax, 2 * len(labels), 2, size).reshape(-1, 2)
    for (path, ranks), label in zip(axes, labels, strict=True):
        values = draws.values[..., draws.labels.index(label)]
        _path(path, values)
        _ranks(ranks, values)
        path.set_title(shortened(label), fontsize=10)
        ranks.set_title(f"{shortened(label)}, ranks", fontsize=10)
    return axes


def _path(ax: Axes, values: np.ndarray) -> None:
    at = np.unique(np.linspace(0, values.shape[1] - 1, SHOWN).round().astype(int))
    for i, chain in enumerate(values):
        ax.plot(at, chain[at], color=COLORS[i % len(COLORS)], linewidth=0.7, alpha=0.9)
    ax.set_xlabel("draw")
    tidy(ax)


def _ranks(ax: Axes, values: np.ndarray) -> None:
    ranks = rankdata(values.reshape(-1)).reshape(values.shape)
    edges = np.linspace(0.5, values.size + 0.5, BINS + 1)
    ax.axhline(1.0, color=REFERENCE_LINE, linewidth=1, linestyle="--")
    for i, chain in enumerate(ranks):
        count = np.histogram(chain, edges)[0] / (values.shape[1] / BINS)
        ax.stairs(count, edges, color=COLORS[i % len(COLORS)], linewidth=1.3, baseline=None)
    ax.set(xlabel="rank among all draws", ylim=(0, None))
    ax.set_ylabel("draws over expected", fontsize=8)
    tidy(ax)
