"""Sums over rows of value, score and curvature, for models with linear predictors: one product for all nodes of a row.

    log p(y_i | z) = f(u_i, t, row i),     u_i = A_i z + b_i,     v_i = (t, u_i): few numbers, linear in z

so that v_i is Gaussian with known moments under q = N(m, R R'), and a rule with few nodes integrates over it:

    E_q[∇ log p_i] = B_i' E[∇f],     E_q[∇² log p_i] = B_i' E[∇²f] B_i,     B_i = dv_i/dz

Means over the nodes are computed in the p + r numbers of a row, with one product Σ B_i' h_i B_i at the end, instead of
a product for every node (`derivatives`). With t and u_i written as

    t = m_t + L_t ε_t,     u_i = m_i + C_i ε_t + L_i ε_u,     L_t L_t' = var t,   C_i = cov(u_i, t) L_t⁻ᵀ

t is the same for all rows. With R = 1 and one node at zero these are the derivatives at a point.

If scores jump (`compiling.jumps`), as in a quantile regression, second derivatives are zero almost everywhere, and an
expected score at nodes jumps with the nodes. Then both are computed from values,

    E[∂f/∂u] = L_i⁻ᵀ E[f ε_u],     E[∂²f/∂u²] = L_i⁻ᵀ E[f (ε_u ε_u' - 1)] L_i⁻¹                (Stein, Price)

`rowwise` chooses the models with this structure, the number of nodes, and the pieces of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.compiling.predictors import MAX_PREDICTORS, Predictors, curvatures
from pyro_fed.density.derivatives.nodes import rule
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.batched import Moments, vmap


def _added(total: Moments, parts: Sequence[Tensor]) -> Moments:
    return Moments(*(t + p.double() for t, p in zip(total, parts, strict=True)))


@dataclass(frozen=True)
class Rowwise:
    """Sums over rows of expectations under a Gaussian."""

    parts: Predictors
    order: int  # as for `nodes.rule`
    wide: bool = False  # spread the predictors' nodes wide
    diagonal: bool = False  # sum the curvature's diagonal alone, (D,), in `add_points`
    by_values: bool = False  # take derivatives in the predictors from values, in `add`

    def add(
        self, problem: Problem, total: Moments, const: tuple[Any, Tensor, Tensor], piece: tuple[Tensor, Tensor]
    ) -> tuple[Moments, Any]:
        """The sums with a piece of one client's rows, under q of mean and root R; row numbers (b,) and weights (b,)."""
        (rows, mean, root), (index, weight) = const, piece
        picked = tuple(leaf[index] for leaf in rows)
        parts, at = self.parts, list(self.parts.direct)
        ends = torch.cat([torch.stack([torch.zeros_like(mean), mean]), root.T])
        zero, centre, *_ = found = vmap(lambda z: parts.linear(z, *picked))(ends)  # one product: (2 + D, b, p)
        slopes, of_t = found[2:] - zero, root[at]  # (D, b, p), whitened
        rule_of_row = rule(self.order, parts.width + len(at), parts.width if self.wide else 0)
        nodes, shares = (part.to(mean) for part in rule_of_row)  # (K, r + p) and (K,)
        us, zs, own = _spread(centre, slopes, mean, of_t, at, nodes)
        each = vmap(lambda u, z: curvatures(parts, u, z, picked, weight))(us, zs)
        means = [torch.tensordot(shares, part, 1) for part in each]
        if self.by_values and self.order != 1:
            values = vmap(lambda u, z: parts.rest(u, z, *picked))(us, zs) - parts.rest(centre, mean, *picked)
            means[1], means[3] = _of_values(shares, values * weight, nodes[:, len(at) :], own)
        return _added(total, sums_of(slopes, of_t, means)), ()

    def add_points(
        self, problem: Problem, total: Moments, rows: Any, piece: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Moments, Any]:
        """The same at points (s, D), over which the sum is taken, in place of nodes."""
        index, weight, points = piece
        return _added(total, self._over(points, tuple(leaf[index] for leaf in rows), weight)), ()

    def add_each(
        self, problem: Problem, total: Moments, const: tuple[Any, Tensor], piece: tuple[Tensor, Tensor]
    ) -> tuple[Moments, Any]:
        """The same at each of points (M, D), an axis of the sums."""
        (rows, points), (index, weight) = const, piece
        slopes, of_t, each = self._parts(points, tuple(leaf[index] for leaf in rows), weight)
        return _added(total, vmap(lambda *parts: sums_of(slopes, of_t, parts))(*each)), ()

    def add_share(self, problem: Problem, total: Tensor, _: Any, share: tuple[Tensor, Batch]) -> tuple[Tensor, Any]:
        """The curvature (D, D) of rows, summed over them and over their share of the points, (s, D)."""
        points, batch = share
        return total + self._over(points, batch.rows, batch.weight)[2].double(), ()

    def _over(self, points: Tensor, rows: Any, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, score and curvature of one client's rows, summed over them and over points (s, D)."""
        slopes, of_t, each = self._parts(points, rows, weight)
        return sums_of(slopes, of_t, [part.sum(0) for part in each], self.diagonal)

    def _parts(self, points: Tensor, rows: Any, weight: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Derivatives of predictors and of t in z, and `predictors.curvatures` at each point."""
        parts = self.parts
        us = vmap(lambda z: parts.linear(z, *rows))(points)
        eye = torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
        zero = parts.linear(torch.zeros_like(points[0]), *rows)
        slopes = vmap(lambda z: parts.linear(z, *rows))(eye) - zero
        each = vmap(lambda u, z: curvatures(parts, u, z, rows, weight))(us, points)
        return slopes, eye[list(parts.direct)], each


def _spread(
    centre: Tensor, slopes: Tensor, mean: Tensor, of_t: Tensor, at: list[int], nodes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Predictors (K, b, p) and vectors (K, D) with t in its place, at the nodes (K, r + p); and L_i (b, p, p)."""
    own = nodes[:, len(at) :]
    one = slopes.shape[2] == 1
    variance = slopes.square().sum(0).unsqueeze(-1) if one else torch.einsum("dbp,dbq->bpq", slopes, slopes)
    zs = mean.expand(len(nodes), -1)
    us = centre.expand(len(nodes), *centre.shape)
    if at:
        factor = semidefinite_cholesky(of_t @ of_t.T)
        rows = of_t.unbind()
        unit: list[Tensor] = []
        for j, row in enumerate(rows):
            left = row - sum((factor[j, k] * unit[k] for k in range(j)), torch.zeros_like(row))
            unit.append(torch.where(factor[j, j] > 0, left / factor[j, j], 0.0))
        shared = torch.einsum("dbp,rd->bpr", slopes, torch.stack(unit))
        variance = variance - (shared.unsqueeze(1) * shared.unsqueeze(2)).sum(-1)
        us = us + torch.einsum("bpr,kr->kbp", shared, nodes[:, : len(at)])
        moved = mean[at] + nodes[:, : len(at)] @ factor.T
        zs = zs.index_copy(1, torch.tensor(at, device=mean.device), moved)
    factor = semidefinite_cholesky(variance)
    return us + torch.einsum("bpq,kq->kbp", factor, own), zs, factor


def _of_values(shares: Tensor, values: Tensor, nodes: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """E[∂f/∂u] (b, p) and E[∂²f/∂u²] (b, p, p) from f (K, b) at nodes ε (K, p); L (b, p, p) may be singular."""
    eye = torch.eye(nodes.shape[1], dtype=nodes.dtype, device=nodes.device)
    pivots = factor.diagonal(dim1=1, dim2=2)
    spread = (pivots > 0).to(nodes)
    inverse = torch.linalg.inv(factor + torch.diag_embed(1.0 - spread)) * spread.unsqueeze(2) * spread.unsqueeze(1)
    first = torch.einsum("k,kb,kp->bp", shares, values, nodes)
    second = torch.einsum("k,kb,kpq->bpq", shares, values, nodes.unsqueeze(2) * nodes.unsqueeze(1) - eye)
    return (first.unsqueeze(1) @ inverse).squeeze(1), inverse.mT @ second @ inverse


def semidefinite_cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factors of small matrices (..., p, p), with zeros for pivots that are not positive."""
    size = matrix.shape[-1]
    rows: list[list[Tensor]] = []
    for i in range(size):
        row: list[Tensor] = []
        for j in range(i + 1):
            left = matrix[..., i, j] - sum(
                (row[k] * (rows[j][k] if j < i else row[k]) for k in range(j)), torch.zeros_like(matrix[..., i, j])
            )
            if i == j:
                row.append(left.clamp_min(0).sqrt())
            else:
                pivot = rows[j][j]
                row.append(torch.where(pivot > 0, left / torch.where(pivot > 0, pivot, 1.0), 0.0))
        rows.append(row + [torch.zeros_like(matrix[..., 0, 0])] * (size - i - 1))
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def sums_of(
    slopes: Tensor, of_t: Tensor, means: Sequence[Tensor], diagonal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, score and curvature of rows by slopes (D, b, p) of u, slopes (r, D) of t, and means of `curvatures`."""
    value, by_u, by_t, uu, ut, tt = means
    flat = slopes.flatten(1)  # (D, b p)
    score = flat @ by_u.flatten() + by_t @ of_t
    if slopes.shape[2] == 1:
        turned = slopes * uu[..., 0]
    elif slopes.shape[2] > MAX_PREDICTORS:
        turned = torch.einsum("dbq,bpq->dbp", slopes, uu)
    else:  # one predictor after another: torch sums over a handful of numbers, each time, thirty times as slowly
        turned = reduce(torch.add, [slopes[..., q : q + 1] * uu[..., q] for q in range(slopes.shape[2])])
    if diagonal:
        entries = (turned.flatten(1) * flat).sum(1)
        if len(of_t):
            entries = entries + 2 * ((flat @ ut.flatten(0, 1)) * of_t.T).sum(1) + ((tt @ of_t) * of_t).sum(0)
        return value, score, -entries
    hessian = turned.flatten(1) @ flat.T
    if len(of_t):
        cross = (flat @ ut.flatten(0, 1)) @ of_t
        hessian = hessian + cross + cross.T + of_t.T @ tt @ of_t
    return value, score, -hessian


def unwhiten_sums(sums: Moments, root: Tensor) -> Moments:
    """Score and H from R' score and R' H R."""

    def back(x: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(root.mT, x, upper=False)  # R is upper triangular
        return solved

    half = back(sums.curvature)
    return Moments(sums.value, back(sums.score.unsqueeze(-1)).squeeze(-1), back(half.mT).mT)
