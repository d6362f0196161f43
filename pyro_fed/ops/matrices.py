"""Products with matrices that are dense or diagonal, and the positive part of a symmetric one.

A dense matrix is (..., D, D), a diagonal one (..., D), as its vectors are: the number of axes tells which it is.
"""

from __future__ import annotations

import torch
from torch import Tensor


def times(matrix: Tensor, x: Tensor) -> Tensor:
    """A x, of the shape of x (..., D), for a matrix A (..., D, D) or its diagonal (..., D)."""
    if matrix.dim() == x.dim():
        return matrix * x
    return matrix @ x if x.dim() == 1 else (matrix @ x.unsqueeze(-1)).squeeze(-1)


def times_transposed(matrix: Tensor, x: Tensor) -> Tensor:
    """A' x; arguments as for `times`."""
    return times(matrix.mT if matrix.dim() > x.dim() else matrix, x)


def positive_part(matrix: Tensor) -> Tensor:
    """A symmetric (..., D, D) without its negative eigenvalues; NaN where an entry is not finite."""
    finite = matrix.isfinite().all(-1).all(-1)[..., None, None]
    values, vectors = torch.linalg.eigh(torch.where(finite, matrix + matrix.mT, 0.0) / 2)
    positive: Tensor = (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT
    return torch.where(finite, positive, torch.nan)
