"""Reliability plots: do probabilities mean what they say (Kassab and Simeone, Appendix A.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyro_fed.analysis.judging import metrics
from pyro_fed.analysis.judging.calibration import BINS, calibration_errors, reliability
from pyro_fed.analysis.judging.density import thinned
from pyro_fed.analysis.judging.distances import DRAWS_COMPARED
from pyro_fed.analysis.plots.style import by_name, colors, tidy
from pyro_fed.conventions.calls import checked
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import unconstrained_draws


@checked
def plot_reliability(
    results: Mapping[str, InferenceData] | InferenceData,
    federation: Federation,
    test: tuple[Any, ...],
    *,
    bins: int = BINS,
) -> Figure:
    """Accuracy against confidence on test data, a panel a result; dots have the area of their rows.

    On the diagonal a prediction made with confidence 0.8 is right four times in five. Below it the result is
    too sure of itself, above it too cautious.

    Args:
        results: InferenceData by name, or one of them.
        federation: on which they were run.
        test: the model's arguments for the test data, observations included.
        bins: of confidence.

    Returns:
        The figure.

    Raises:
        SettingError: the observations are no classes.

    Example:
        >>> pf.plot_reliability({"FedEP": idata}, fed, (x_test, y_test)).savefig("reliability.png")
    """
    results = by_name(results)
    columns = min(4, len(results))
    rows = -(-len(results) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.7 * columns + 0.5, 2.9 * rows + 0.3), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    palette = colors(results)
    for ax, (name, idata) in zip(axes.flat, results.items(), strict=False):
        draws = unconstrained_draws(thinned(idata, DRAWS_COMPARED), federation.problem)
        found = metrics.predict_rows(federation.problem, draws, test)
        if found.probs is None:
            raise SettingError("a reliability plot needs observations that are classes; here they are numbers")
        _panel(ax, found, 1 / found.probs.shape[1], bins, palette[name])
        errors = calibration_errors(found.probs, found.value, bins)
        ax.set_title(f"{name}\nECE {errors['ece']:.3f}, MCE {errors['mce']:.2f}".strip(), fontsize=10)
    for ax in axes.flat[len(results) :]:
        ax.set_visible(False)
    figure.supxlabel("confidence of the prediction", fontsize=10)
    figure.supylabel("share that was right", fontsize=10)
    return figure


def _panel(ax: Axes, found: metrics.Predictions, chance: float, bins: int, color: str) -> None:
    probs, value = found.probs, found.value
    assert probs is not None
    points = reliability(probs, value, bins)
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle="--", zorder=1)
    ax.plot(points.confidence, points.accuracy, color=color, linewidth=1, alpha=0.6)
    area = 12 + 250 * points.rows / len(value)
    ax.scatter(points.confidence, points.accuracy, s=area, color=color, alpha=0.8, zorder=3, clip_on=False)
    for x, y, rows, size in zip(points.confidence, points.accuracy, points.rows, area, strict=True):
        gap = 4 + size**0.5 / 2
        offset, side = ((0, -gap), "top") if y > 0.5 else ((0, gap), "bottom")
        text: dict[str, Any] = {"ha": "center", "va": side, "fontsize": 7, "color": "0.35"}
        ax.annotate(f"{rows}", (x, y), xytext=offset, textcoords="offset points", **text)
    ax.set_xlim(min(chance, 0.5) - 0.02, 1.02)
    ax.set_ylim(0, 1.04)
    tidy(ax, grid="both")
