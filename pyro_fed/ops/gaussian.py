"""Gaussians in natural parameters, proper or not, as used by FedEP, PVI, FSGLD's surrogates and P2P.

Source: Guo et al., *Federated learning as variational inference*, Section 2 and Algorithm 1 (sites, cavities
and changes in natural parameters); Wang et al., *Peer-to-peer variational federated learning over
arbitrary graphs*, Eq. (3), (4) and (8).

    N(x | m, P⁻¹) = exp(-x'Px / 2 + eta'x - A),   eta = P m
    q = p_0 Π_k t_k:   P = P_0 + Σ_k P_k,   eta = eta_0 + Σ_k eta_k

Letters: P ``precision`` (Lambda in Guo et al., Sigma⁻¹ in Wang et al.), eta ``eta``, m and P⁻¹ ``moments``
(mu and Sigma), A the logarithm of the factor's integral.

There is one class for each structure, with the same methods; leading axes (clients, say) are a batch.

    FullGaussian        precision (..., D, D)   moments (..., D), covariance (..., D, D)
    DiagGaussian        precision (..., D)      moments (..., D), variances (..., D)

A site need not be proper: products, quotients, powers and scores are defined for any. Methods that need P⁻¹ compute in
float64 and return the dtype of the fields. Where P is not positive definite they return NaN; a precision is never
repaired. ``is_proper`` returns a flag, ``require_proper`` raises. Sums of natural parameters of very different size
lose digits: keep the fields in float64. The projection to the diagonal keeps the mean and the variances: of all
diagonal Gaussians the result minimises KL(self || ·).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from pyro_fed.errors import PyroFedError
from pyro_fed.ops.matrices import Factor, equilibrated_cholesky, factor_of, inverse_of, symmetrised
from pyro_fed.ops.points import even_normals


class ImproperGaussianError(PyroFedError, ValueError):
    """Raised if a Gaussian that has to be proper has a precision that is not positive definite."""


@dataclass(frozen=True, eq=False)
class Gaussian(ABC):
    """A Gaussian, or a batch, by its natural parameters: P, in the structure's shape, and eta = P m, (..., D)."""

    precision: Tensor
    eta: Tensor

    _matrix_dims: ClassVar[int]  # trailing dimensions of the precision of one Gaussian

    @classmethod
    def zeros(
        cls,
        batch_shape: tuple[int, ...],
        dim: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Flat factors, P = 0 and eta = 0: the unit of the product."""
        eta = torch.zeros((*batch_shape, dim), dtype=dtype, device=device)
        shape = (*batch_shape, *(dim,) * cls._matrix_dims)
        return cls(torch.zeros(shape, dtype=dtype, device=device), eta)

    @property
    def dim(self) -> int:
        """D, the number of parameters."""
        return self.eta.shape[-1]

    @property
    def dense(self) -> bool:
        """Whether the precision is a full matrix."""
        return self._matrix_dims == 2

    @property
    def batch_shape(self) -> torch.Size:
        """Sizes of the axes before those of the parameters."""
        return self.eta.shape[:-1]

    def product(self, other: Gaussian) -> Self:
        """Product of the densities, up to a constant: natural parameters add."""
        self._check_partner(other)
        return type(self)(self.precision + other.precision, self.eta + other.eta)

    def quotient(self, other: Gaussian) -> Self:
        """Quotient of the densities, up to a constant: a cavity, proper or not."""
        self._check_partner(other)
        return type(self)(self.precision - other.precision, self.eta - other.eta)

    def power(self, exponent: float | Tensor) -> Self:
        """Density to a power, up to a constant; a tensor exponent has one value for each Gaussian of the batch."""
        if isinstance(exponent, Tensor):
            wide = exponent.reshape(exponent.shape + (1,) * self._matrix_dims)
            return type(self)(self.precision * wide, self.eta * exponent.unsqueeze(-1))
        return type(self)(self.precision * exponent, self.eta * exponent)

    def product_over(self, axis: int = 0) -> Self:
        """Product over one axis of the batch, counted from the left: Π_k t_k of the clients' sites."""
        if not 0 <= axis < len(self.batch_shape):
            raise ValueError(f"product_over: expected an axis of the batch {tuple(self.batch_shape)}, received {axis}")
        return type(self)(self.precision.sum(axis), self.eta.sum(axis))

    def to(self, dtype: torch.dtype) -> Self:
        """This factor with fields of another dtype."""
        return type(self)(self.precision.to(dtype), self.eta.to(dtype))

    __mul__ = product
    __truediv__ = quotient
    __pow__ = power

    @classmethod
    @abstractmethod
    def from_moments(cls, mean: Tensor, spread: Tensor) -> Self:
        """The Gaussian with a mean (..., D) and a spread as returned by ``moments``; NaN where that is not positive."""

    @abstractmethod
    def is_proper(self) -> Tensor:
        """Whether P is finite and positive definite and eta finite: (...), bool."""

    def require_proper(self, what: str) -> Self:
        """This Gaussian; raises an ImproperGaussianError, which names it `what`. Not for ``vmap`` or ``make_fx``."""
        proper = self.is_proper()
        if not bool(proper.all()):
            bad = [tuple(index) if index else "itself" for index in (~proper).nonzero().tolist()]
            raise ImproperGaussianError(
                f"{what}: expected finite parameters and positive definite precisions, received {len(bad)} "
                f"of {proper.numel()} that are not (batch index {bad[:10]}); take a smaller step "
                "(ops.backtrack) or keep the previous value"
            )
        return self

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean (..., D) and covariance or variances, by structure."""
        double = self.to(torch.float64)
        return double._mean().to(self.eta.dtype), double._spread().to(self.eta.dtype)

    def mean(self) -> Tensor:
        """P⁻¹ eta: (..., D)."""
        return self.to(torch.float64)._mean().to(self.eta.dtype)

    @abstractmethod
    def log_det(self) -> Tensor:
        """Log determinant of the precision P: (...)."""

    def entropy(self) -> Tensor:
        """H(q) = (D (1 + log 2π) - log det P) / 2, (...); NaN where improper."""
        return 0.5 * (self.dim * (1 + math.log(2 * math.pi)) - self.log_det())

    def log_prob(self, x: Tensor) -> Tensor:
        """Normalised log density at points (..., D), which broadcast with the batch."""
        double = self.to(torch.float64)
        # Offsets from the mean: the terms of exp(-x'Px / 2 + eta'x - A) cancel if the mean is many SDs from 0.
        offset = x.to(torch.float64) - double._mean()
        quadratic = (offset * double._multiply(offset)).sum(-1)
        value = 0.5 * (double.log_det() - quadratic - self.dim * math.log(2.0 * math.pi))
        return value.to(self.eta.dtype)

    def log_factor(self, x: Tensor) -> Tensor:
        """-x'Px / 2 + eta'x, the log of the factor without its constant; proper or not."""
        double, x64 = self.to(torch.float64), x.to(torch.float64)
        return (x64 * (double.eta - 0.5 * double._multiply(x64))).sum(-1).to(self.eta.dtype)

    def mean_log_factor(self, q: Self) -> Tensor:
        """Mean of `log_factor` under a proper Gaussian of the same structure: (...), NaN where that is not proper."""
        factor, under = self.to(torch.float64), q.to(torch.float64)
        return (factor.log_factor(under._mean()) - 0.5 * under._trace_ratio(factor)).to(self.eta.dtype)

    def score(self, x: Tensor) -> Tensor:
        """Gradient of the log density, eta - P x, proper or not: (..., D)."""
        double = self.to(torch.float64)
        return (double.eta - double._multiply(x.to(torch.float64))).to(self.eta.dtype)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) (...) of proper Gaussians of the same structure; NaN where one is not proper."""
        self._check_partner(other)
        q, p = self.to(torch.float64), other.to(torch.float64)
        offset = q._mean() - p._mean()
        quadratic = (offset * p._multiply(offset)).sum(-1)
        value = 0.5 * (q._trace_ratio(p) + quadratic - self.dim + q.log_det() - p.log_det())
        return value.to(self.eta.dtype)

    @abstractmethod
    def root(self) -> Tensor:
        """A with A A' = P⁻¹: upper triangular (..., D, D), or the diagonal (..., D); NaN where P is not proper."""

    def transform(self, noise: Tensor) -> Tensor:
        """m + P^(-1/2) z for standard normal z: (S, ..., D) -> (S, ..., D)."""
        double = self.to(torch.float64)
        return (double._mean() + double._half_solve(noise.to(torch.float64))).to(self.eta.dtype)

    def sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws: (num_samples, ..., D). The same generator state gives the same draws in every dtype."""
        shape = (num_samples, *self.eta.shape)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        return self.transform(noise.to(self.eta.device))

    def even_sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws (num_samples, ..., D) of the Gaussian whose means vary less by chance (`points.even_normals`)."""
        dim, count = self.eta.shape[-1], self.eta.shape[:-1].numel()
        noise = torch.stack([even_normals(num_samples, dim, generator) for _ in range(count)], 1)
        return self.transform(noise.reshape(num_samples, *self.eta.shape).to(self.eta.device))

    @abstractmethod
    def relative_change(self, delta: Gaussian) -> Tensor:
        """Eigenvalues (..., D) of P^(-1/2) D P^(-1/2), D a change's precision: float64, unordered, or NaN."""

    @abstractmethod
    def to_full(self) -> Gaussian:
        """This factor with a full precision, proper or not."""

    @abstractmethod
    def to_diag(self) -> Gaussian:
        """The diagonal Gaussian with the same mean and variances; exact for a diagonal structure."""

    @abstractmethod
    def _mean(self) -> Tensor:
        """P⁻¹ eta."""

    @abstractmethod
    def _spread(self) -> Tensor:
        """P⁻¹, in the structure's own shape."""

    @abstractmethod
    def _multiply(self, x: Tensor) -> Tensor:
        """P x."""

    @abstractmethod
    def _half_solve(self, noise: Tensor) -> Tensor:
        """P^(-1/2) z for z of shape (S, ..., D)."""

    @abstractmethod
    def _trace_ratio(self, other: Self) -> Tensor:
        """tr(P_other P⁻¹)."""

    def _check_partner(self, other: Gaussian) -> None:
        if type(self) is not type(other) or self.dim != other.dim:
            raise TypeError(
                f"Gaussian: expected {type(self).__name__} of dimension {self.dim}, received "
                f"{type(other).__name__} of dimension {other.dim}; convert one with to_full() or to_diag()"
            )

    @classmethod
    def _check_moments(cls, mean: Tensor, spread: Tensor) -> None:
        expected = (*mean.shape[:-1], *(mean.shape[-1],) * cls._matrix_dims)
        if tuple(spread.shape) != expected:
            raise ValueError(
                f"{cls.__name__}.from_moments: expected second moments of shape {expected} beside a mean of "
                f"shape {tuple(mean.shape)}, received {tuple(spread.shape)}; expand them first"
            )


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
        # LAPACK raises for the whole batch if one matrix has NaN: undefined matrices are replaced and marked
        # afterwards.
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
        # Samples become columns, so that the factor is not copied for each sample.
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
        """`Gaussian.even_sample`, for one Gaussian of the batch after the other, which saves memory."""
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


#: Classes by the name of their structure.
STRUCTURES: dict[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diag": DiagGaussian,
}

# vmap, make_fx and tree_map treat these classes as pytrees of two tensors.
for _structure in STRUCTURES.values():
    torch.export.register_dataclass(_structure)
