"""The algebra of Gaussian factors: products add natural parameters, and nothing need be proper.

See ``gaussian`` for the conventions and the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NaturalParameters:
    """A Gaussian factor, or a batch of them: precision and eta, proper or not."""

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

    def product(self, other: NaturalParameters) -> Self:
        """Product of the densities, up to a constant: natural parameters add."""
        self._check_partner(other)
        return type(self)(self.precision + other.precision, self.eta + other.eta)

    def quotient(self, other: NaturalParameters) -> Self:
        """Quotient of the densities, up to a constant: a cavity, proper or not."""
        self._check_partner(other)
        return type(self)(self.precision - other.precision, self.eta - other.eta)

    def power(self, exponent: float | Tensor) -> Self:
        """Density to a power, up to a constant; a tensor exponent is one for each of the batch."""
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

    def _check_partner(self, other: NaturalParameters) -> None:
        if type(self) is not type(other) or self.dim != other.dim:
            raise TypeError(
                f"Gaussian: expected {type(self).__name__} of dimension {self.dim}, received "
                f"{type(other).__name__} of dimension {other.dim}; convert one with to_full() or to_diag()"
            )
