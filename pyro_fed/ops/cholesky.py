"""Cholesky factors of badly scaled precisions, by Jacobi equilibration.

    P = S C S,   S = diag(P)^(1/2),   C = L L'  with a unit diagonal

Scaling the coordinates of P changes S alone, so that parameters of scale 1e-6 beside others of scale 1e6
cost no digits: to within a factor d no diagonal scaling has a smaller condition number (van der Sluis, 1969).
An argument that is not positive definite is never repaired: ``proper`` is False and every result is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Factor(NamedTuple):
    """P = S L L' S, NaN where P is not finite and positive definite.

    Fields: ``scale``, the diagonal of S, (..., D); ``lower``, L, (..., D, D); ``proper``, whether P is finite
    and positive definite, (...), bool.
    """

    scale: Tensor
    lower: Tensor
    proper: Tensor

    def log_det(self) -> Tensor:
        """Log determinant of the precision P, from its factor: (...)."""
        diagonal = torch.diagonal(self.lower, dim1=-2, dim2=-1)
        return 2.0 * (self.scale.log() + diagonal.log()).sum(-1)

    def whole(self) -> Tensor:
        """S L, the lower triangular factor of P itself: (..., D, D)."""
        return self.scale.unsqueeze(-1) * self.lower

    def half_solve(self, x: Tensor) -> Tensor:
        """(S L)⁻¹ x for a matrix x: (..., D, K) -> (..., D, K)."""
        solution: Tensor = torch.linalg.solve_triangular(self.lower, x / self.scale.unsqueeze(-1), upper=False)
        return solution

    def half_solve_transposed(self, x: Tensor) -> Tensor:
        """(S L)⁻ᵀ x: turns standard normal columns into ones of covariance P⁻¹."""
        upper = self.lower.transpose(-1, -2)
        solution: Tensor = torch.linalg.solve_triangular(upper, x, upper=True)
        return solution / self.scale.unsqueeze(-1)

    def solve(self, x: Tensor) -> Tensor:
        """P⁻¹ x for a matrix x: (..., D, K) -> (..., D, K)."""
        return self.half_solve_transposed(self.half_solve(x))

    def inverse(self) -> Tensor:
        """P⁻¹, exactly symmetric: (..., D, D)."""
        identity = torch.eye(self.lower.shape[-1], dtype=self.lower.dtype, device=self.lower.device)
        half = self.half_solve(identity.expand(self.lower.shape))
        return half.transpose(-1, -2) @ half


def equilibrated_cholesky(matrix: Tensor) -> Factor:
    """Factor a symmetric matrix, with a flag instead of an exception.

    Args:
        matrix: P, (..., D, D); only its symmetric part counts.

    Returns:
        The factor; NaN, with ``proper`` False, where P is not finite and positive definite.
    """
    matrix = symmetrised(matrix)
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    candidate = torch.isfinite(matrix).all(-1).all(-1) & (diagonal > 0).all(-1)
    scale = torch.where(candidate.unsqueeze(-1), diagonal, 1.0).sqrt()
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    scaled = matrix / scale.unsqueeze(-1) / scale.unsqueeze(-2)
    # LAPACK must not meet NaN: what is no candidate is factored as the identity and marked afterwards.
    lower, info = torch.linalg.cholesky_ex(torch.where(candidate.unsqueeze(-1).unsqueeze(-1), scaled, identity))
    proper = candidate & (info == 0)
    lower = torch.where(proper.unsqueeze(-1).unsqueeze(-1), lower, torch.nan)
    return Factor(torch.where(proper.unsqueeze(-1), scale, torch.nan), lower, proper)


def symmetrised(matrix: Tensor) -> Tensor:
    """(A + A') / 2."""
    return 0.5 * (matrix + matrix.transpose(-1, -2))
