"""Value, score and curvature of log-likelihoods, as they go from where they are computed to the sites."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Means over the points, with a leading client axis: value (C,), score (C, D), curvature (C, D[, D])."""

    value: Tensor
    score: Tensor
    curvature: Tensor

    def finite(self) -> Tensor:
        """Whether everything that a client computed is finite: (C,)."""
        return torch.stack([part.reshape(len(part), -1).isfinite().all(1) for part in self]).all(0)
