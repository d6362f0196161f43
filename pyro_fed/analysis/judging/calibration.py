"""Calibration of class probabilities: whether predictions of confidence p are right in a share p of the rows.

Test rows are put into B bins by confidence, the probability of the predicted class. In bin j, acc_j is the
share of correct predictions and conf_j the mean confidence (Kassab and Simeone, Appendix A.3, Eq. 21)::

    B_j = ((j-1)/B, j/B],      ECE = Σ_j |B_j|/n |acc_j - conf_j|,      MCE = max_j |acc_j - conf_j|

The bins are those of the reliability plot, `reliability`; a confidence of one belongs to the last. The MCE of a bin
with few rows is mostly noise: look at the plot, which shows how many rows a bin has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL
from pyro_fed.errors import DataError, SettingError
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData

#: Number of bins B by default.
BINS = 10
#: What the name of a deployment's group of an estimand begins with.
OF_DEPLOYMENT = "estimand_"
#: Largest number of bins: more than any plot shows, few enough for the memory.
MAX_BINS = 10_000


class Reliability(NamedTuple):
    """The b bins that hold at least one row: left edges, numbers of rows, mean confidence and accuracy, (b,) each."""

    left: np.ndarray
    rows: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def calibration_errors(probs: Tensor, value: Tensor, bins: int = BINS) -> dict[str, float]:
    """ECE and MCE, the average and the largest gap between confidence and accuracy, as `reliability` has them."""
    found = reliability(probs, value, bins)
    gap = np.abs(found.accuracy - found.confidence)
    return {"ece": float(found.rows @ gap / found.rows.sum()), "mce": float(gap.max())}


def reliability(probs: Tensor, value: Tensor, bins: int = BINS) -> Reliability:
    """Confidence and accuracy by bin, of probabilities (n, C), averaged over draws, and observed classes (n,)."""
    if not 1 <= bins <= MAX_BINS:
        raise SettingError(f"calibration needs 1 to {MAX_BINS:,} bins of confidence, received bins={bins}")
    if probs.dim() < 2 or not probs.numel() or value.shape != probs.shape[:-1]:
        raise DataError(
            f"calibration takes probabilities (n, C) and classes (n,), received {tuple(probs.shape)} and "
            f"{tuple(value.shape)}"
        )
    confidence, predicted = (part.numpy() for part in probs.double().max(-1))
    correct = predicted == value.long().numpy()
    edges = np.arange(bins) / bins
    bin_of = np.digitize(confidence, edges[1:], right=True)  # intervals are open on the left
    kept = [j for j in range(bins) if np.any(bin_of == j)]
    return Reliability(
        edges[kept],
        np.array([np.sum(bin_of == j) for j in kept]),
        np.array([confidence[bin_of == j].mean() for j in kept]),
        np.array([correct[bin_of == j].mean() for j in kept]),
    )


@checked
def calibration_table(result: InferenceData, name: str | None = None) -> pd.DataFrame:
    """Observed against predicted shares by bins of the predicted one, of each client and overall.

    Args:
        result: of `pf.estimand(..., by={"predicted": [...]})`; or of a deployment that was asked for such an estimand.
        name: the estimand's name, in a deployment's result.

    Returns:
        A row for each client, or "overall", and bin with rows: `bin`, its end; `rows`; `predicted`, the mean of the
        posterior means; `observed`, the share of ones; and `lower` and `upper`, its 95 % limits by Wilson.

    Raises:
        DataError: the result has no such estimand; a client is called "overall", or claims an impossible share of ones.

    References:
        Wilson (1927), *Probable inference, the law of succession, and statistical inference*.

    Example:
        >>> found = pf.estimand(idata, fed, by={"predicted": [0.25, 0.5, 0.75, 1.0]})
        >>> pf.metrics.calibration_table(found)
    """
    group = "posterior" if name is None else f"{OF_DEPLOYMENT}{name}"
    found = group_of(result, group) if group in result else None
    if found is None or "observed" not in found:
        raise DataError(
            f"calibration_table takes estimands by predicted means, as of pf.estimand(..., by={{'predicted': [...]}}), "
            f"and the group {group!r} has none"
        )
    clients = found["client"].values.tolist()
    if OVERALL in clients:
        raise DataError(
            f"calibration_table: a client is called {OVERALL!r}, which is the name of all clients together: rename it"
        )
    rows = found["rows"].values
    sums = {
        "predicted": np.nan_to_num(found["estimand"].mean(("chain", "draw")).values) * rows,
        "observed": np.nan_to_num(found["observed"].values) * rows,
    }
    ones = sums["observed"].round()
    impossible = [clients[k] for k in ((ones < 0) | (ones > rows)).any(1).nonzero()[0]]
    if impossible:
        raise DataError(
            "calibration_table: expected a share of ones between 0 and 1 in each bin, received other values from "
            f"clients {impossible}: leave these out, or ask them again"
        )
    counts = np.vstack([rows, rows.sum(0)])
    totals = {key: np.vstack([value, value.sum(0)]) for key, value in sums.items()}
    client, bin_of = counts.nonzero()
    n = counts[client, bin_of]
    shares = {key: value[client, bin_of] / n for key, value in totals.items()}
    from scipy.stats import binomtest  # takes a second

    ones = totals["observed"][client, bin_of].round().astype(int)
    intervals = [binomtest(k, int(of)).proportion_ci(method="wilson") for k, of in zip(ones.tolist(), n, strict=True)]
    names = np.array([*clients, OVERALL])
    ends = found["predicted"].values[bin_of]
    limits = {"lower": [one.low for one in intervals], "upper": [one.high for one in intervals]}
    return pd.DataFrame({"client": names[client], "bin": ends, "rows": n, **shares, **limits})
