"""Whether probabilities mean what they say.

Test rows are put into B bins by confidence, the probability of the predicted class. In bin j, acc_j is the
share of correct predictions and conf_j the mean confidence (Kassab and Simeone, Appendix A.3, Eq. 21)::

    ECE = Σ_j |B_j|/n |acc_j - conf_j|,      MCE = max_j |acc_j - conf_j|

Both errors are computed by torchmetrics. The MCE of a bin with few rows is mostly noise: look at the
reliability plot, which shows how many rows a bin has.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from pyro_fed.errors import SettingError

#: B where none is given.
BINS = 10


class Reliability(NamedTuple):
    """The b bins that hold rows.

    Args:
        left: (b,), their left edges.
        rows: (b,), how many rows they hold.
        confidence: (b,), mean confidence of these.
        accuracy: (b,), share of these that was right.
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
        SettingError: torchmetrics is not installed.

    Example:
        >>> calibration_errors(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        {'ece': 0.25, 'mce': 0.25}
    """
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError as error:
        raise SettingError("calibration errors need torchmetrics: pip install 'pyro_fed[compare]'") from error
    errors = {}
    norms: dict[str, Literal["l1", "max"]] = {"ece": "l1", "mce": "max"}
    for name, norm in norms.items():
        result = multiclass_calibration_error(
            probs.double(), value.long(), num_classes=probs.shape[1], n_bins=bins, norm=norm
        )
        errors[name] = float(result)
    return errors


def reliability(probs: Tensor, value: Tensor, bins: int = BINS) -> Reliability:
    """Confidence and accuracy by bin, for the reliability plot.

    Args:
        probs: (n, C), class probabilities averaged over the draws.
        value: (n,), observed classes 0..C-1.
        bins: B.

    Returns:
        The bins that hold rows, from the least confident on.

    Example:
        >>> reliability(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0])).accuracy
        array([0.5])
    """
    confidence, predicted = (part.numpy() for part in probs.double().max(-1))
    correct = predicted == value.long().numpy()
    bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # intervals are open on the left
    kept = [j for j in range(bins) if np.any(bin_of == j)]
    return Reliability(
        np.array(kept) / bins,
        np.array([np.sum(bin_of == j) for j in kept]),
        np.array([confidence[bin_of == j].mean() for j in kept]),
        np.array([correct[bin_of == j].mean() for j in kept]),
    )
