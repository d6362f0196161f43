"""The two structures of a Gaussian's precision: full and diagonal.

See ``gaussian`` for the conventions. The projection to the diagonal keeps the mean and the variances: of all diagonal
Gaussians the result minimises KL(self || ·). It needs a proper Gaussian; the embedding is exact for every one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from pyro_fed.ops.cholesky import Factor, equilibrated_cholesky, factor_of, inverse_of, symmetrised
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.points import even_normals


def _positive_or_nan(x: Tensor) -> Tensor:
    return torch.where((x > 0) & torch.isfinite(x), x, torch.nan)


@dataclass(frozen=True, eq=False)
class FullGaussian(Gaussian):
    """Precision (..., D, D); moments (..., D) and covariance (..., D, D)."""

    _matrix_dims: ClassVar[int] = 2

    @classmethod
    def from_moments(cls, mean: Tensor, spread: Tensor) -> Self:
        cls._check_moments(mean, spread)
        factor = equilibrated_cholesky(spread.to(torch.float64))
        eta = factor.solve(mean.to(torch.float64).unsqueeze(-1)).squeeze(-1)
        return cls(factor.inverse().to(mean.dtype), eta.to(mean.dtype))

    def _factor(self) -> Factor:
        return factor_of(self.precision)

    def is_proper(self) -> Tensor:
        return self._factor().proper & torch.isfinite(self.eta).all(-1)

    def log_det(self) -> Tensor:
        return self._factor().log_det().to(self.eta.dtype)

    def relative_change(self, delta: Gaussian) -> Tensor:
        self._check_partner(delta)
        factor = self._factor()
        half = factor.half_solve(symmetrised(delta.precision.to(torch.float64)))
        ratio = symmetrised(factor.half_solve(half.transpose(-1, -2)))
        finite = torch.isfinite(ratio).all(-1).all(-1)
        # LAPACK raises at NaN for the whole batch: what is undefined is left out and marked afterwards.
        values = torch.linalg.eigvalsh(torch.where(finite.unsqueeze(-1).unsqueeze(-1), ratio, 0.0))
        return torch.where(finite.unsqueeze(-1), values, torch.nan)

    def to_full(self) -> FullGaussian:
        """This factor, which is full already."""
        return self

    def to_diag(self) -> DiagGaussian:
        """The diagonal Gaussian of the same mean and variances."""
        double = self.to(torch.float64)
        variances = torch.diagonal(double._spread(), dim1=-2, dim2=-1)
        return DiagGaussian.from_moments(double._mean(), variances).to(self.eta.dtype)

    def root(self) -> Tensor:
        identity = torch.eye(self.dim, dtype=torch.float64, device=self.eta.device).expand(self.precision.shape)
        return self._factor().half_solve_transposed(identity).to(self.eta.dtype)

    def _mean(self) -> Tensor:
        return self._factor().solve(self.eta.unsqueeze(-1)).squeeze(-1)

    def _spread(self) -> Tensor:
        return inverse_of(self.precision)

    def _multiply(self, x: Tensor) -> Tensor:
        return torch.einsum("...ij,...j->...i", self.precision, x)

    def _half_solve(self, noise: Tensor) -> Tensor:
        # Samples become columns, so that the factor is not copied for every one of them.
        return self._factor().half_solve_transposed(noise.movedim(0, -1)).movedim(-1, 0)

    def _trace_ratio(self, other: Self) -> Tensor:
        return (self._spread() * symmetrised(other.precision)).sum((-2, -1))


@dataclass(frozen=True, eq=False)
class DiagGaussian(Gaussian):
    """Precision (..., D); moments (..., D) and variances (..., D)."""

    _matrix_dims: ClassVar[int] = 1

    @classmethod
    def from_moments(cls, mean: Tensor, spread: Tensor) -> Self:
        cls._check_moments(mean, spread)
        precision = 1.0 / _positive_or_nan(spread)
        return cls(precision, precision * mean)

    def is_proper(self) -> Tensor:
        finite = torch.isfinite(self.precision) & torch.isfinite(self.eta)
        return (finite & (self.precision > 0)).all(-1)

    def log_det(self) -> Tensor:
        return _positive_or_nan(self.precision).log().sum(-1)

    def relative_change(self, delta: Gaussian) -> Tensor:
        self._check_partner(delta)
        ratio = delta.precision.to(torch.float64) / _positive_or_nan(self.precision.to(torch.float64))
        return torch.where(torch.isfinite(ratio).all(-1, keepdim=True), ratio, torch.nan)

    def to_full(self) -> FullGaussian:
        """This factor as a FullGaussian."""
        return FullGaussian(torch.diag_embed(self.precision), self.eta)

    def to_diag(self) -> DiagGaussian:
        """This factor, which is diagonal already."""
        return self

    def root(self) -> Tensor:
        return _positive_or_nan(self.precision).rsqrt()

    def even_sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """`Gaussian.even_sample`, one of the batch after the other: draws of many parameters are many numbers."""
        batch = self.precision.reshape(-1, self.dim), self.eta.reshape(-1, self.dim)
        draws = self.eta.new_empty(num_samples, *batch[1].shape)
        for at, (precision, eta) in enumerate(zip(*batch, strict=True)):
            noise = even_normals(num_samples, self.dim, generator).to(self.eta.device)
            draws[:, at] = type(self)(precision, eta).transform(noise)
        return draws.reshape(num_samples, *self.eta.shape)

    def _mean(self) -> Tensor:
        return self.eta / _positive_or_nan(self.precision)

    def _spread(self) -> Tensor:
        return 1.0 / _positive_or_nan(self.precision)

    def _multiply(self, x: Tensor) -> Tensor:
        return self.precision * x

    def _half_solve(self, noise: Tensor) -> Tensor:
        return noise * _positive_or_nan(self.precision).rsqrt()

    def _trace_ratio(self, other: Self) -> Tensor:
        return (other.precision / _positive_or_nan(self.precision)).sum(-1)


#: The classes by the name of their structure.
STRUCTURES: dict[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diag": DiagGaussian,
}

# vmap, make_fx and tree_map see through these classes, as through a tuple of two tensors.
for _structure in STRUCTURES.values():
    torch.export.register_dataclass(_structure)
