"""A Gaussian factor with tails like those of Student's t, so that draws reach where the factor falls too fast.

    t(z) = exp(-z'Λz/2 + η'z)  →  t(z) exp h(z),   h = r²/2 - (ν + R)/2 log(1 + r²/ν),   r² = Σ_i λ_i (z_i - b_i)²

in coordinates where N(0, I) is the whole of which t is a factor, and Λ is diagonal, over those λ_i that count, with
b_i = η_i / λ_i the factor's centre. R = Σ_i λ_i (1 + b_i²) is the mean of r² under N(0, I): near it the factor keeps
its slope, far out it falls as a power. With all λ_i = 1 and b_i = 0 it is the multivariate t.

Letters: λ `values` (D,), b `centre` (D,), ν `freedom`, R `typical`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.gaussian_structures import DiagGaussian

#: Directions in which the factor has less than this share of the whole's precision are left as they are.
LEAST_SHARE = 0.01
#: So are those in which the whole's mean is more than this many of the factor's variances from its centre: it is the
#: other factors that hold the whole there, and where this one falls as a power they would draw it to themselves.
MAX_CENTRE_DISTANCE = 1.0


class Tails(NamedTuple):
    """The precisions of a factor that count, the others zero; its centre, degrees of freedom, and the typical r²."""

    values: Tensor
    centre: Tensor
    freedom: float
    typical: Tensor

    @classmethod
    def of(cls, factor: DiagGaussian, freedom: float | None) -> Tails:
        """The tails of a factor in coordinates that whiten the whole; None leaves the coordinates unchanged."""
        keep = factor.precision > (LEAST_SHARE if freedom is not None else torch.inf)
        keep &= factor.eta.square() <= MAX_CENTRE_DISTANCE * factor.precision
        values = torch.where(keep, factor.precision, 0.0)
        centre = torch.where(keep, factor.eta / torch.where(keep, factor.precision, 1.0), 0.0)
        return cls(values, centre, freedom or torch.inf, (values * (1 + centre.square())).sum())

    def log_ratio(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """h (S,) and its gradient (S, D) at z (S, D)."""
        if not bool(self.values.any()):
            return torch.zeros_like(z[:, 0]), torch.zeros_like(z)
        away = z - self.centre
        bent = away * self.values
        squared = (bent * away).sum(-1)
        weight = self.freedom + self.typical
        value = squared / 2 - weight / 2 * torch.log1p(squared / self.freedom)
        return value, (1 - weight / (self.freedom + squared)).unsqueeze(-1) * bent
