"""Whether rows are concave in their linear predictors, and the prior Gaussian: then the posterior has a single maximum.

    f_i(v) ≤ f_i(u) + ∇f_i(u)'(v - u)     for all u, v,      log p(y_i | z) = f_i(u_i),     u_i = A_i z + b_i

All pairs of `POINTS` points are compared, spread over `REACH` times the prior's SDs around its mean: of a row's few
predictors these are a grid over the prior's range. A convex part, or an upward kink or jump, shows in some pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.density.compiling.predictors import CHECK_ROWS, Predictors, predictors
from pyro_fed.density.derivatives.rowwise import piece_size
from pyro_fed.density.derivatives.scores import prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BLOCK, ClientData, row_pieces
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.cholesky import symmetrised
from pyro_fed.ops.gaussian_structures import FullGaussian
from pyro_fed.ops.points import MOST_SOBOL_DIMS, standardised_sobol
from pyro_fed.ops.whitening import Coordinates, site_scores

#: Number of points whose tangents are compared, and the number of the prior's SDs over which one of them is spread.
POINTS, REACH = 16, 2.0


def points_for_tangents(problem: Problem) -> Tensor | None:
    """Points (P, D) at which tangents are compared; None if the prior is no Gaussian, or rows have no predictors."""

    def find() -> Tensor | None:
        if problem.layout.improper or problem.dim > MOST_SOBOL_DIMS:
            return None
        sample = predictors(problem, CHECK_ROWS)
        return _under_gaussian(problem) if sample is not None and not sample.direct else None

    found: Tensor | None = problem.compiler.find_once("spread points", find, problem)
    return found


def _under_gaussian(problem: Problem) -> Tensor | None:
    """Points under the prior, `REACH` times as wide; None if it is no Gaussian."""
    eye = torch.eye(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
    ends = prior_scores(problem, torch.cat([torch.zeros_like(eye[:1]), eye])).double()
    precision, eta = symmetrised(ends[0] - ends[1:]), ends[0]
    prior = FullGaussian(precision, eta)
    if not bool(prior.is_proper()):
        return None
    points = Coordinates.of(prior).model(REACH * standardised_sobol(POINTS, problem.dim).to(precision))
    own = prior_scores(problem, points.to(problem.dtype)).double()
    size = eta.abs() + points.abs() @ precision.abs()
    near = ROUNDING_UNITS * torch.finfo(problem.dtype).eps * size  # not a number is not less
    return points if bool(((own - site_scores(precision, eta, points)).abs() <= near).all()) else None


def count_tangents_below(problem: Problem, points: Tensor, data: ClientData) -> Tensor:
    """Numbers of pairs of points (C, P, D) at which a tangent lies below the log-likelihood of a client's row, (C,)."""
    clients, count = points.shape[:2]
    size = piece_size(data.row_index.shape[-1], BLOCK // (clients * count**2))
    parts = predictors(problem, size)
    if parts is None:
        return torch.ones(clients, dtype=torch.float64, device=points.device)
    index, weight = row_pieces(data, size)
    const = (data.rows, points.to(problem.dtype))
    total = torch.zeros(clients, dtype=torch.float64, device=points.device)
    found: Tensor = problem.scan(Tangents(parts).add, total, const, (index, weight), len(index), (None, 0))[0]
    return found


@dataclass(frozen=True)
class Tangents:
    """A count of rows' tangents that lie below, by the predictors `parts` of the model."""

    parts: Predictors

    def add(
        self, problem: Problem, total: Tensor, const: tuple[Any, Tensor], piece: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Any]:
        """The count with a piece of one client's rows, at points (P, D), by row numbers (b,) and weights (b,)."""
        (rows, points), (index, weight) = const, piece
        picked = tuple(leaf[index] for leaf in rows)
        parts, eps = self.parts, torch.finfo(points.dtype).eps

        def of_rows(u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            values = parts.rest(u, z, *picked)
            return values.sum(), values

        us = vmap(lambda z: parts.linear(z, *picked))(points)  # (P, b, p)
        slopes, values = vmap(grad(of_rows, has_aux=True))(us, points)
        rise = torch.einsum("amp,bmp->abm", slopes, us) - (slopes * us).sum(-1).unsqueeze(1)
        size = torch.einsum("amp,bmp->abm", slopes.abs(), us.abs()) + (slopes * us).abs().sum(-1).unsqueeze(1)
        size = 1.0 + size + values.abs().unsqueeze(1) + values.abs().unsqueeze(0)
        above = values.unsqueeze(0) <= values.unsqueeze(1) + rise + ROUNDING_UNITS * eps * size
        below = ~above  # NaN counts as below too
        return total + (below & (weight > 0)).sum().to(total), ()
