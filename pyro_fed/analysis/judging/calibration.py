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
from torch import Tensor

from pyro_fed.errors import DataError, SettingError

#: Number of bins B by default.
BINS = 10
#: Largest number of bins: more than any plot shows, few enough for the memory.
MOST_BINS = 10_000


class Reliability(NamedTuple):
    """The b bins that hold at least one row.

    Args:
        left: (b,), left edges of the bins.
        rows: (b,), number of rows in each bin.
        confidence: (b,), mean confidence of these rows.
        accuracy: (b,), share of these rows whose predicted class is right.

    Example:
        >>> found = reliability(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        >>> float(found.confidence[0]), float(found.accuracy[0])
        (0.75, 0.5)
    """

    left: np.ndarray
    rows: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def calibration_errors(probs: Tensor, value: Tensor, bins: int = BINS) -> dict[str, float]:
    """Average and largest gap between confidence and accuracy, ECE and MCE.

    Args:
        probs: (n, C), class probabilities averaged over the draws.
        value: (n,), observed classes 0..C-1.
        bins: B.

    Returns:
        `ece` and `mce`, in [0, 1].

    Raises:
        SettingError: no bins, or more than `MOST_BINS`.

    Example:
        >>> calibration_errors(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        {'ece': 0.25, 'mce': 0.25}
    """
    found = reliability(probs, value, bins)
    gap = np.abs(found.accuracy - found.confidence)
    return {"ece": float(found.rows @ gap / found.rows.sum()), "mce": float(gap.max())}


def reliability(probs: Tensor, value: Tensor, bins: int = BINS) -> Reliability:
    """Confidence and accuracy by bin, for the reliability plot.

    Args:
        probs: (n, C), class probabilities averaged over the draws.
        value: (n,), observed classes 0..C-1.
        bins: B.

    Returns:
        The bins that hold rows, from the least confident on.

    Raises:
        SettingError: no bins.
        DataError: the shapes do not fit.

    Example:
        >>> reliability(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0])).accuracy
        array([0.5])
    """
    if not 1 <= bins <= MOST_BINS:
        raise SettingError(f"calibration needs 1 to {MOST_BINS:,} bins of confidence, received bins={bins}")
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
