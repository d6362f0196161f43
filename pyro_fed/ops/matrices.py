"""Linear algebra: Cholesky factors of badly scaled and of tiny matrices, products with dense and diagonal ones.

*Badly scaled precisions* are factored by Jacobi equilibration,

    P = S C S,   S = diag(P)^(1/2),   C = L L'  with a unit diagonal

Scaling the coordinates of P changes S alone. So parameters of scale 1e-6 beside others of scale 1e6 lose no
digits: to within a factor d no diagonal scaling has a smaller condition number (van der Sluis, 1969).
An argument that is not positive definite is never repaired: ``proper`` is False and every result is NaN.

*Many tiny matrices* are factored by elementwise operations, column by column for the whole batch at once: LAPACK calls
for a million matrices cost more than the arithmetic, and a compiler cannot fuse them with their neighbours.

    A = L D L',    C = L |D|^(1/2)

Pivots are taken in absolute value, and are at least `floor` times the largest entry of |A|. If this changes a pivot,
C C' differs from A, is positive definite, and serves as the metric of an ascent direction.

*Products*: a dense matrix is (..., D, D), a diagonal one is (..., D), as its vectors are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

#: Largest number of entries of a matrix whose factor is cached: for larger ones factoring takes long, not the overhead.
MAX_CACHED_NUMBERS = 2**20


#: Smallest eigenvalue of a matrix, relative to its diagonal: smaller ones are rounding.
MIN_EIGENVALUE = 1e-6
#: Power iterations; the estimate is a lower bound, within a few percent after twenty.
POWER_ITERATIONS = 20


class Factor(NamedTuple):
    """P = S L L' S of a proper P, NaN elsewhere: diag S (..., D), L (..., D, D), whether P is proper (...)."""

    scale: Tensor
    lower: Tensor
    proper: Tensor

    def log_det(self) -> Tensor:
        """Log determinant of the precision P, from its factor: (...)."""
        diagonal = torch.diagonal(self.lower, dim1=-2, dim2=-1)
        return 2.0 * (self.scale.log() + diagonal.log()).sum(-1)

    def full_lower(self) -> Tensor:
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


@dataclass
class CachedFactor:
    """The cached factor of a matrix P: the version that was factored, its factor, and its inverse once requested."""

    version: int
    factor: Factor
    inverse: Tensor | None = None


#: Cached factors by matrix, as long as the matrix exists.
_CACHED_FACTORS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def factor_of(matrix: Tensor) -> Factor:
    """`equilibrated_cholesky` in float64 of a matrix P (..., D, D), cached unless P is being traced or mapped."""
    if not _is_plain(matrix):
        return equilibrated_cholesky(matrix.to(torch.float64))
    return _cached_factor(matrix).factor


def inverse_of(matrix: Tensor) -> Tensor:
    """The inverse (..., D, D) of a matrix, by the same factor, cached like it."""
    if not _is_plain(matrix):
        return factor_of(matrix).inverse()
    known = _cached_factor(matrix)
    if known.inverse is None:
        known.inverse = known.factor.inverse()
    return known.inverse


def _is_plain(matrix: Tensor) -> bool:
    """Whether a matrix is neither traced nor mapped, and small enough to cache its factor."""
    plain = matrix.numel() <= MAX_CACHED_NUMBERS and torch._C._len_torch_dispatch_stack() == 0
    return plain and not matrix.requires_grad and torch._C._functorch.peek_interpreter_stack() is None


def _cached_factor(matrix: Tensor) -> CachedFactor:
    known: CachedFactor | None = _CACHED_FACTORS.get(matrix)
    if known is None or known.version != matrix._version:
        double = matrix.to(torch.float64)
        known = CachedFactor(matrix._version, _factor_of_proper(double) or equilibrated_cholesky(double))
        _CACHED_FACTORS[matrix] = known
    return known


def _factor_of_proper(matrix: Tensor) -> Factor | None:
    """`equilibrated_cholesky` in a third of the time, if the whole batch is finite and positive definite."""
    matrix = symmetrised(matrix)
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    if not bool((diagonal > 0).all()):
        return None
    scale = diagonal.sqrt()
    lower, info = torch.linalg.cholesky_ex(matrix / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    pivots = torch.diagonal(lower, dim1=-2, dim2=-1)  # NaN in any entry spreads to one of them
    proper = info == 0
    return Factor(scale, lower, proper) if bool((proper & torch.isfinite(pivots).all(-1)).all()) else None


def equilibrated_cholesky(matrix: Tensor) -> Factor:
    """Factor the symmetric part of P (..., D, D); NaN, with a flag in place of an exception, where P is not proper."""
    matrix = symmetrised(matrix)
    diagonal = torch.diagonal(matrix, dim1=-2, dim2=-1)
    candidate = torch.isfinite(matrix).all(-1).all(-1) & (diagonal > 0).all(-1)
    scale = torch.where(candidate.unsqueeze(-1), diagonal, 1.0).sqrt()
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    scaled = matrix / scale.unsqueeze(-1) / scale.unsqueeze(-2)
    # LAPACK must not receive NaN: other matrices are replaced by the identity and marked afterwards.
    lower, info = torch.linalg.cholesky_ex(torch.where(candidate.unsqueeze(-1).unsqueeze(-1), scaled, identity))
    proper = candidate & (info == 0)
    lower = torch.where(proper.unsqueeze(-1).unsqueeze(-1), lower, torch.nan)
    return Factor(torch.where(proper.unsqueeze(-1), scale, torch.nan), lower, proper)


def symmetrised(matrix: Tensor) -> Tensor:
    """(A + A') / 2."""
    return 0.5 * (matrix + matrix.transpose(-1, -2))


def absolute_cholesky(matrix: Tensor, floor: float) -> Tensor:
    """The factor C of |A| (..., d, d), pivots at least `floor` times the largest entry, lower triangular."""
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


def times(matrix: Tensor, x: Tensor) -> Tensor:
    """A x, of the shape of x (..., D), for a matrix A (..., D, D) or its diagonal (..., D)."""
    if matrix.dim() == x.dim():
        return matrix * x
    return matrix @ x if x.dim() == 1 else (matrix @ x.unsqueeze(-1)).squeeze(-1)


def times_transposed(matrix: Tensor, x: Tensor) -> Tensor:
    """A' x; arguments as for `times`."""
    return times(matrix.mT if matrix.dim() > x.dim() else matrix, x)


def with_absolute_eigenvalues(matrix: Tensor) -> Tensor:
    """|H| of a symmetric H (..., D, D): the absolute eigenvalues of H scaled to a diagonal of ±1, and scaled back."""
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


def power_iteration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The eigenvalue of largest absolute value (C,) of symmetric matrices, whose `product` maps vectors (C, D)."""
    tiny = torch.finfo(like.dtype).tiny
    direction, value = torch.ones_like(like), like.new_zeros(len(like))
    for _ in range(POWER_ITERATIONS):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(tiny)
        image = product(direction)
        value = (direction * image).sum(-1)
        direction = image
    return value
