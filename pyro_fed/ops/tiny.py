"""Cholesky factors of many tiny matrices, unrolled into elementwise operations.

A call of LAPACK for each of a million matrices of order one to five costs more than the arithmetic, and a compiler
cannot fuse it with its neighbours. Columns are eliminated one by one, for the whole batch at once:

    A = L D L',    C = L |D|^(1/2)

A pivot that is not positive is taken in absolute value, and none is smaller than `floor` times the largest entry of
|A|: then C C' differs from A, is positive definite, and serves as the metric of an ascent direction.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def absolute_cholesky(matrix: Tensor, floor: float) -> Tensor:
    """The factor C of the module's header, lower triangular, of symmetric matrices A (..., d, d).

    `floor` is the smallest pivot, relative to the largest entry of |A|.
    """
    size = matrix.shape[-1]
    least = (floor * matrix.abs().amax((-2, -1))).clamp_min(torch.finfo(matrix.dtype).tiny)
    columns = []
    for j in range(size):
        column = matrix[..., 0]
        pivot = column[..., 0]
        kept = pivot.abs().maximum(least)
        signed = torch.where(pivot < 0, -kept, kept)
        ratio = column / signed.unsqueeze(-1)
        ratio = torch.cat([torch.ones_like(ratio[..., :1]), ratio[..., 1:]], -1)
        columns.append(pad(ratio * kept.sqrt().unsqueeze(-1), (j, 0)))
        matrix = (matrix - ratio.unsqueeze(-1) * column.unsqueeze(-2))[..., 1:, 1:]
    return torch.stack(columns, -1)


def log_det_lower(factor: Tensor) -> Tensor:
    """log |C|: factor (..., d, d), positive on its diagonal."""
    return torch.stack([factor[..., i, i] for i in range(factor.shape[-1])], -1).log().sum(-1)


def solve_lower(factor: Tensor, vector: Tensor) -> Tensor:
    """C⁻¹ v: factor (..., d, d), vector (..., d)."""
    parts: list[Tensor] = []
    for i in range(factor.shape[-1]):
        known = sum((factor[..., i, j] * parts[j] for j in range(i)), torch.zeros_like(vector[..., i]))
        parts.append((vector[..., i] - known) / factor[..., i, i])
    return torch.stack(parts, -1)


def solve_lower_transposed(factor: Tensor, vector: Tensor) -> Tensor:
    """C⁻ᵀ v, which turns standard normal vectors into ones of precision C C'."""
    size = factor.shape[-1]
    parts: dict[int, Tensor] = {}
    for i in reversed(range(size)):
        known = sum((factor[..., j, i] * parts[j] for j in range(i + 1, size)), torch.zeros_like(vector[..., i]))
        parts[i] = (vector[..., i] - known) / factor[..., i, i]
    return torch.stack([parts[i] for i in range(size)], -1)
