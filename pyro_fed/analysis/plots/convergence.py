"""How runs went: figures by round and by bytes, error against bytes, agents' beliefs, paths and ranks of chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from scipy.stats import rankdata

from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.plots.style import (
    COLORS,
    INK,
    MARKERS,
    MAX_MARKS,
    PLOTTED_DRAWS,
    REFERENCE,
    REFERENCE_LINE,
    GivenAxes,
    by_name,
    check_labels,
    colors,
    legend_above,
    line_colors,
    new_axes,
    panels,
    shortened,
    tidy,
)
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.errors import SettingError
from pyro_fed.ops.arviz_versions import rhat
from pyro_fed.ops.entries import evenly
from pyro_fed.results.inference_data import InferenceData, flag

#: Numbers of rounds or bytes of results that differ by more than this factor are shown on a logarithmic axis.
LOG_SCALE_RATIO = 50.0


@checked
def plot_convergence(
    results: Mapping[str, InferenceData] | InferenceData,
    metric: str = "change",
    *,
    log: bool = True,
    ax: GivenAxes = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """A metric after each round: on the left against the round, on the right against the bytes sent until then.

    Args:
        results: InferenceData by name, or a single one.
        metric: a variable of the group `federation`, such as "change", the update of a round (zero:
            converged); where it is given for each client, their mean is shown.
        log: logarithmic vertical axis.
        ax: two matplotlib axes; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The two axes, an array (2,): against rounds and against bytes.

    Raises:
        SettingError: no result has this metric, or fewer than two axes.

    Example:
        >>> by_round, by_bytes = pf.plots.plot_convergence({"FedEP": idata, "PVI": other})
    """
    results = by_name(results)
    recorded = {name: idata for name, idata in results.items() if "federation" in idata}
    with_metric = {name: idata for name, idata in recorded.items() if metric in idata["federation"]}
    if not with_metric:
        known = sorted({str(name) for idata in recorded.values() for name in idata["federation"].data_vars})
        raise SettingError(f"plot_convergence: metric must be one of {known}, received {metric!r}")
    axes = panels(ax, 2, 2, figsize or (8.4, 3.2), sharey=True)
    palette = colors(results)
    for name, idata in with_metric.items():
        values, megabytes = _series(idata["federation"], metric)
        style = {"color": palette[name], "label": name, "linewidth": 1.6}
        style |= {"marker": "o", "markersize": 3} if len(values) <= MAX_MARKS else {}
        known = np.isfinite(values)  # rounds of an algorithm that the run started from lack this metric
        axes[0].plot(np.arange(1, len(values) + 1)[known], values[known], **style)
        if not flag(idata.attrs, "centralized"):
            axes[1].plot(megabytes[known], values[known], **style)
    for one, label in zip(axes, ("round", "sent and received until then, MB"), strict=True):
        one.set_xlabel(label)
        tidy(one)
        if log:
            one.set_yscale("log")
        _scale_across(one, [line.get_xdata()[-1] for line in one.lines if len(line.get_xdata())])
    axes[0].set_ylabel(f"{metric} of the round" if metric == "change" else metric)
    if len(results) > 1:
        axes[0].legend(frameon=False, fontsize=9)
    return axes


def _scale_across(ax: Axes, values: Sequence[float] | np.ndarray) -> None:
    """Make the x axis logarithmic if its values differ by more than `LOG_SCALE_RATIO`; a linear one has few ticks."""
    if len(values) and max(values) > LOG_SCALE_RATIO * min(values):
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=4)


def _series(record: xr.Dataset, metric: str) -> tuple[np.ndarray, np.ndarray]:
    values = record[metric].values
    if values.ndim == 2:
        seen = np.isfinite(values)
        values = np.where(seen.any(1), np.where(seen, values, 0).sum(1) / np.maximum(seen.sum(1), 1), np.nan)
    sent = sum(np.nansum(record[name].values.reshape(len(values), -1), 1) for name in ("bytes_up", "bytes_down"))
    return values, np.cumsum(sent) / 1e6


@checked
def plot_cost(
    table: pd.DataFrame,
    error: str = "mean_error",
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] = (5.6, 3.2),
) -> Axes:
    """The error of each result against the bytes that its clients sent and received.

    Args:
        table: the table of `pyro_fed.compare` with a reference.
        error: a column of it, such as "mean_error" or "ksd".
        ax: matplotlib axes to draw on; by default a new figure is made.
        figsize: width and height of a new figure, in inches.

    Returns:
        The axes, with a mark for each result: a logarithmic one of errors, and one of bytes that is logarithmic if they
        differ by more than a factor of 50. Below the dashed line the mean error is small enough.

    Raises:
        SettingError: the table lacks the column, or no result has both.

    Example:
        >>> pf.plots.plot_cost(pf.compare(results, "NUTS", federation=fed))
    """
    needed = {error, "bytes_up", "bytes_down"}
    if not needed <= set(table.columns):
        raise SettingError(
            f"plot_cost takes a table of pf.compare with the columns {sorted(needed)}, received one without "
            f"{sorted(needed - set(table.columns))}: compare the results with a reference"
        )
    sent = (table["bytes_up"] + table["bytes_down"]).to_numpy(dtype=float)
    wrong = table[error].to_numpy(dtype=float)
    known = np.isfinite(sent) & np.isfinite(wrong) & (sent > 0) & (wrong > 0)
    if not known.any():
        raise SettingError(
            f"plot_cost needs at least one result of a federated run with a positive {error}, received none: a "
            "reference sends no bytes"
        )
    panel = new_axes(ax, figsize)
    palette = line_colors([str(name) for name in table.index])
    panel.set_yscale("log")
    _scale_across(panel, sent[known])
    for number, name in enumerate(palette):
        if known[number]:
            marker = MARKERS[number // len(COLORS) % len(MARKERS)]
            panel.plot(sent[number] / 1e6, wrong[number], marker, color=palette[name], label=name)
    if error == "mean_error":
        panel.axhline(MATTERS, color=REFERENCE_LINE, linewidth=1, linestyle="--")
    panel.margins(0.1)
    panel.set_xlabel("sent and received by all clients, MB")
    panel.set_ylabel("mean error, reference SDs" if error == "mean_error" else error)
    tidy(panel, grid="both")
    if ax is None:
        panel.figure.legend(loc="outside right upper", frameon=False)
    else:
        legend_above(panel)  # within, its marks look like further results
    return panel


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
            "plot_consensus needs each agent's beliefs after each round, which this run did not record: run a "
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
    for one in (top, bottom):
        tidy(one)
    return np.array([top, bottom])


def _draw_beliefs(ax: Axes, rounds: np.ndarray, mean: np.ndarray, sd: np.ndarray, names: np.ndarray) -> None:
    few = mean.shape[1] <= len(COLORS)  # each then has a name, a colour and a band
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


#: Bins of the histograms of ranks.
RANK_BINS = 20


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
    draws = Draws.of(idata)
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
    at = evenly(values.shape[1], PLOTTED_DRAWS).numpy()
    for i, chain in enumerate(values):
        ax.plot(at, chain[at], color=COLORS[i % len(COLORS)], linewidth=0.7, alpha=0.9)
    ax.set_xlabel("draw")
    tidy(ax)


def _ranks(ax: Axes, values: np.ndarray) -> None:
    ranks = rankdata(values.reshape(-1)).reshape(values.shape)
    edges = np.linspace(0.5, values.size + 0.5, RANK_BINS + 1)
    ax.axhline(1.0, color=REFERENCE_LINE, linewidth=1, linestyle="--")
    for i, chain in enumerate(ranks):
        count = np.histogram(chain, edges)[0] / (values.shape[1] / RANK_BINS)
        ax.stairs(count, edges, color=COLORS[i % len(COLORS)], linewidth=1.3, baseline=None)
    ax.set(xlabel="rank among all draws", ylim=(0, None))
    ax.set_ylabel("draws over expected", fontsize=8)
    tidy(ax)
