"""Whitened coordinates, in which a Gaussian q = N(m, A A') is standard normal.

    θ = m + A z,    ∇_z log p = A' ∇_θ log p,    N(η, Λ) in θ  →  A'ΛA, A'(η - Λ m) in z

Letters: m `mean` (D,), A `factor`: (D, D), or (D,) if q is diagonal; z `white` coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import DiagGaussian, Gaussian


class Coordinates(NamedTuple):
    """m (..., D) and A (..., D, D) or (..., D); leading axes are clients."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, q: Gaussian) -> Coordinates:
        """Coordinates that whiten a proper Gaussian, in float64."""
        q = q.to(torch.float64)
        return cls(q.mean(), q.root())

    def to(self, dtype: torch.dtype) -> Coordinates:
        """These coordinates in another dtype."""
        return Coordinates(self.mean.to(dtype), self.factor.to(dtype))

    @property
    def diagonal(self) -> bool:
        """Whether A is diagonal."""
        return self.factor.dim() == self.mean.dim()

    def model(self, white: Tensor) -> Tensor:
        """θ of z: (..., N, D), or (D,) for a single vector."""
        single = white.dim() == self.mean.dim()
        z = white.unsqueeze(-2) if single else white
        x = self.mean.unsqueeze(-2) + (z * self.factor.unsqueeze(-2) if self.diagonal else z @ self.factor.mT)
        return x.squeeze(-2) if single else x

    def white(self, points: Tensor) -> Tensor:
        """Whitened coordinates of θ: (..., N, D)."""
        offset = points - self.mean.unsqueeze(-2)
        if self.diagonal:
            return offset / self.factor.unsqueeze(-2)
        solved: Tensor = torch.linalg.solve(self.factor, offset.mT)
        return solved.mT

    def pull(self, scores: Tensor) -> Tensor:
        """Scores in z from scores in θ: (..., N, D)."""
        return scores * self.factor.unsqueeze(-2) if self.diagonal else scores @ self.factor

    def site(self, site: Gaussian) -> Gaussian:
        """A factor (or a batch of them) in z."""
        shifted = site.score(self.mean)
        if self.diagonal:
            return type(site)(self.factor * site.precision * self.factor, self.factor * shifted)
        return type(site)(self.factor.mT @ site.precision @ self.factor, shifted @ self.factor)


def diagonal_coordinates(coordinates: Coordinates, site: Gaussian) -> tuple[Coordinates, DiagGaussian, Tensor | None]:
    """Coordinates V'z in which a factor is diagonal, the factor there, and V (None if the factor was diagonal)."""
    if not site.dense:
        return coordinates, DiagGaussian(site.precision, site.eta), None
    values, turn = torch.linalg.eigh(site.precision)
    return coordinates._replace(factor=coordinates.factor @ turn), DiagGaussian(values, site.eta @ turn), turn


def site_scores(precision: Tensor, eta: Tensor, white: Tensor) -> Tensor:
    """η - Λ z of Gaussian factors, full or diagonal: z (..., N, D)."""
    full = precision.dim() > eta.dim()
    product = white @ precision.mT if full else white * precision.unsqueeze(-2)
    return eta.unsqueeze(-2) - product
