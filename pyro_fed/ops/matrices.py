"""Products with matrices that are dense or diagonal, and the positive part of a symmetric one.

A dense matrix is (..., D, D), a diagonal one (..., D), as its vectors are: the number of axes tells which it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Smallest eigenvalue of |H|, relative to H's diagonal.
MIN_EIGENVALUE = 1e-6


def times(matrix: Tensor, x: Tensor) -> Tensor:
    """A x, of the shape of x (..., D), for a matrix A (..., D, D) or its diagonal (..., D)."""
    if matrix.dim() == x.dim():
        return matrix * x
    return matrix @ x if x.dim() == 1 else (matrix @ x.unsqueeze(-1)).squeeze(-1)


def times_transposed(matrix: Tensor, x: Tensor) -> Tensor:
    """A' x; arguments as for `times`."""
    return times(matrix.mT if matrix.dim() > x.dim() else matrix, x)


def with_absolute_eigenvalues(matrix: Tensor) -> Tensor:
    """|H| of a symmetric H (..., D, D): scaled to a diagonal of ±1, with absolute eigenvalues, and scaled back."""
    scale = matrix.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    scale = torch.where(scale > 0, scale, scale.amax(-1, keepdim=True).clamp_min(MIN_EIGENVALUE))
    both = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    values, vectors = torch.linalg.eigh((matrix / both).nan_to_num())
    size: Tensor = (vectors * values.abs().clamp_min(MIN_EIGENVALUE).unsqueeze(-2)) @ vectors.mT * both
    return size


def positive_part(matrix: Tensor) -> Tensor:
    """A symmetric (..., D, D) without its negative eigenvalues; NaN where an entry is not finite."""
    finite = matrix.isfinite().all(-1).all(-1)[..., None, None]
    values, vectors = torch.linalg.eigh(torch.where(finite, matrix + matrix.mT, 0.0) / 2)
    positive: Tensor = (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT
    return torch.where(finite, positive, torch.nan)
