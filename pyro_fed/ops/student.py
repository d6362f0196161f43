"""A Gaussian factor with tails like those of Student's t, so that draws reach where the factor falls too fast.

    t(z) = exp(-z'Λz/2 + η'z)  →  t(z) exp h(z),   h = r²/2 - (ν + R)/2 log(1 + r²/ν),   r² = Σ_i λ_i (v_i'z - b_i)²

in coordinates where N(0, I) is the whole of which t is a factor, over the eigenvalues λ_i of Λ that count there, with
b_i = v_i'η / λ_i the factor's centre along v_i. R = Σ_i λ_i (1 + b_i²) is the mean of r² under N(0, I): near it the
factor keeps its slope, far out it falls as a power. With all λ_i = 1 and b_i = 0 it is the multivariate t.

Letters: v `vectors` (D, p), λ `values` (p,), b `centre` (p,), ν `freedom`, R `typical`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import Gaussian

#: Directions in which the factor has less than this share of the whole's precision are left as they are.
LEAST_SHARE = 0.01


class Tails(NamedTuple):
    """The directions in which a factor counts, its centre there, the degrees of freedom, and the typical r²."""

    vectors: Tensor
    values: Tensor
    centre: Tensor
    freedom: float
    typical: Tensor

    @classmethod
    def of(cls, factor: Gaussian, freedom: float | None) -> Tails:
        """Those of a factor, full or diagonal, in coordinates that whiten the whole; None leaves all as it is."""
        values, vectors = torch.linalg.eigh(factor.to_full().precision)
        keep = values > (LEAST_SHARE if freedom is not None else torch.inf)
        values, vectors = values[keep], vectors[:, keep]
        centre = factor.eta @ vectors / values
        return cls(vectors, values, centre, freedom or torch.inf, (values * (1 + centre.square())).sum())

    def log_ratio(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """h (S,) and its gradient (S, D) at z (S, D)."""
        if not len(self.values):
            return torch.zeros_like(z[:, 0]), torch.zeros_like(z)
        away = z @ self.vectors - self.centre
        squared = (self.values * away.square()).sum(-1)
        weight = self.freedom + self.typical
        value = squared / 2 - weight / 2 * torch.log1p(squared / self.freedom)
        slope = (1 - weight / (self.freedom + squared)).unsqueeze(-1) * (away * self.values) @ self.vectors.T
        return value, slope
