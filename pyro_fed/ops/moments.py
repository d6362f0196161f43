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


class FiniteSums(NamedTuple):
    """Sums over the points at which all is finite, and the number of these."""

    sums: Moments
    finite: Tensor

    def add(self, parts: Moments) -> FiniteSums:
        """With a block of points, each part (s, ...)."""
        finite = parts.finite()

        def summed(part: Tensor) -> Tensor:
            return torch.where(finite.reshape(-1, *[1] * (part.dim() - 1)), part.double(), 0.0).sum(0)

        sums = Moments(*(before + summed(part) for before, part in zip(self.sums, parts, strict=True)))
        return FiniteSums(sums, self.finite + finite.double().sum())
