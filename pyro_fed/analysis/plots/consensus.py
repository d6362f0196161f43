"""Agents' beliefs over the rounds."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from pyro_fed.analysis.plots.style import COLORS, INK, REFERENCE, GivenAxes, panels, plain_ticks, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.results.inference_data import InferenceData

#: Each agent is named and drawn with a band if there are at most this many agents.
MAX_NAMED = 10


@checked
def plot_consensus(
    idata: InferenceData,
    *,
    parameter: int = 0,
    reference: tuple[float, float] | None = None,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """Agents' beliefs about one parameter, mean ± SD, and their disagreement, round by round.

    Args:
        idata: result of a peer-to-peer run with `trace=True`.
        parameter: the parameter's place in the flat unconstrained vector, from 0.
        reference: mean and SD to compare with, such as those of a centralised run.
        ax: two matplotlib axes; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The two axes, an array (2,): beliefs above, disagreement below.

    Raises:
        SettingError: the run kept no beliefs, or has no such parameter.

    Example:
        >>> idata = pf.run(pf.P2PVI(trace=True), fed, graph=pf.graph.ring(5))
        >>> beliefs, disagreement = pf.plots.plot_consensus(idata)
    """
    group = idata["federation"]
    if "belief_mean" not in group:
        raise SettingError(
            "plot_consensus needs each agent's beliefs after each round, which this run has not kept: run a "
            "peer-to-peer algorithm with trace=True, as in pf.P2PVI(trace=True)"
        )
    if not 0 <= parameter < group.sizes["parameter"]:
        raise SettingError(f"parameter must be in 0..{group.sizes['parameter'] - 1}, received {parameter}")
    kept = np.isfinite(group["belief_mean"].values[..., parameter]).any(1)
    mean, sd = (group[name].values[kept][..., parameter] for name in ("belief_mean", "belief_sd"))
    rounds = group["round"].values[kept]
    top, bottom = panels(ax, 2, 1, figsize or (7, 6), sharex=True)
    _draw_beliefs(top, rounds, mean, sd, group["client"].values)
    if reference is not None:
        top.axhline(reference[0], color=INK, linewidth=1, linestyle="--", label="reference")
        top.axhspan(reference[0] - reference[1], reference[0] + reference[1], color=REFERENCE, alpha=0.4, zorder=0)
    top.set_ylabel(f"parameter {parameter}, mean ± SD")
    top.legend(fontsize=8, ncols=2)
    bottom.plot(group["round"].values[kept], group["disagreement"].values[kept], color=COLORS[1])
    bottom.set(yscale="log", xlabel="round", ylabel="disagreement (SDs)")
    plain_ticks(bottom.yaxis)
    for one in (top, bottom):
        tidy(one)
    return np.array([top, bottom])


def _draw_beliefs(ax: Axes, rounds: np.ndarray, mean: np.ndarray, sd: np.ndarray, names: np.ndarray) -> None:
    few = mean.shape[1] <= MAX_NAMED
    for i in range(mean.shape[1]):
        line = ax.plot(
            rounds,
            mean[:, i],
            linewidth=1.2 if few else 0.5,
            alpha=0.9 if few else 0.4,
            color=COLORS[i % len(COLORS)] if few else COLORS[0],
            label=f"agent {names[i]}" if few else None,
        )[0]
        if few:
            ax.fill_between(rounds, mean[:, i] - sd[:, i], mean[:, i] + sd[:, i], color=line.get_color(), alpha=0.12)
