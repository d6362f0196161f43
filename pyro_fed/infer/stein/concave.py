"""A check that a posterior has one mode: a Gaussian prior, and rows that are concave in their linear predictors.

    log p(y_i | z) = f_i(u_i),     u_i = A_i z + b_i              (`predictors`)

A sum of concave functions of linear ones is concave, and one with a Gaussian prior has a single maximum, so that no
search from many places finds another. A function is concave if each of its tangents lies above it,

    f_i(v) ≤ f_i(u) + ∇f_i(u)'(v - u)     for all u, v

The clients compare all pairs of `POINTS` points, spread over `REACH` times the prior's SDs around its mean, and of the
known mode: of a row's few predictors these are a grid over the prior's range. A convex part, or an upward kink or jump,
shows in some pair; if one row of one client has one, modes are searched as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.kinds import cast_checked
from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.density.compiling.predictors import CHECK_ROWS, Predictors, predictors
from pyro_fed.density.derivatives.few_rows import first_row_count, pick_rows
from pyro_fed.density.derivatives.rowwise import SMALLEST_PIECE, rounded_row_count
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BLOCK, ClientData, row_pieces
from pyro_fed.density.scores import prior_scores
from pyro_fed.infer.sites.whitening import Coordinates, site_scores
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.cholesky import symmetrised
from pyro_fed.ops.gaussian_structures import FullGaussian
from pyro_fed.ops.points import MOST_SOBOL_DIMS, standardised_sobol

#: Number of points whose tangents are compared, and the number of the prior's SDs over which one of them is spread.
POINTS, REACH = 16, 2.0


@dataclass(frozen=True, kw_only=True)
class OneMode(Algorithm):
    """One check by the clients, between the search for one mode and that for others.

    Args:
        newton: the search for one mode.
        by_few_rows: whether few rows of each client are checked; None checks few if rows are many.
    """

    draws_are: ClassVar[str] = "point"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    newton: Algorithm
    by_few_rows: bool | None = None

    def default_rounds(self, num_clients: int) -> int:
        """One round."""
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for one mode."""
        return self.newton

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the points at which tangents are compared."""
        start = required_start(start, self)
        mode, spread = start.shared["point"], cast_checked(spread_points(problem), Tensor)
        return start.shared | {
            "pairs": torch.cat([spread.to(mode), mode[None]]),
            "bent": mode.new_zeros(()),
        }, start.local

    def download(self, shared: State, clients: Tensor) -> State:
        """The points, which clients receive."""
        return super().download({"pairs": shared["pairs"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Count the tangents that lie below; if rows are many, of the few rows by which modes are searched."""
        rows = pick_rows(problem, data, first_row_count(problem.dim))[0] if self.by_few_rows else data
        return {"bent": count_tangents_below(problem, shared["pairs"], rows)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the clients' counts."""
        return {**shared, "bent": messages["bent"].sum(0)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The number of tangents that lie below."""
        return {"bent": float(after["bent"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """True after the one round."""
        return True

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The known mode, (1, 1, D)."""
        return shared["point"][None, None]


def is_only(found: State) -> bool:
    """Whether the known mode is the only one, by the clients' counts; false if they were not asked."""
    return "bent" in found and not bool(found["bent"])


def spread_points(problem: Problem) -> Tensor | None:
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
    most = max(SMALLEST_PIECE, BLOCK // (clients * count**2))
    size = min(max(SMALLEST_PIECE, rounded_row_count(data.row_index.shape[-1])), most)
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
        """The count with a piece of one client's rows.

        `const` holds the row tensors and the points (P, D); `piece` holds the rows' numbers (b,) and their weights
        (b,), zero for padding.
        """
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
