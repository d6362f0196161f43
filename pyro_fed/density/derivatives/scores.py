"""A model's log densities, their scores and curvatures at points of its flat vector, of many rows in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.conventions.limits import NEGLIGIBLE, SUM_ROUNDING_UNITS
from pyro_fed.density.derivatives.composed_rows import at_each_composed
from pyro_fed.density.derivatives.rowwise import at_each
from pyro_fed.density.latents.ascent_starts import from_modes
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, in_chunks, row_pieces
from pyro_fed.ops.batched import Moments, hessian_product, second_order
from pyro_fed.ops.entries import choose
from pyro_fed.ops.memory import DENSITY_NUMBERS, count_in_cache, fits_in_memory

#: The most parts of a flat direction that are named.
MAX_NAMED_PARTS = 4


def prior_values(problem: Problem, points: Tensor) -> Tensor:
    """Log prior, with the transforms' Jacobians; arguments as for `prior_scores`, values (N,)."""
    return problem.log_prior(points)


def prior_scores(problem: Problem, points: Tensor) -> Tensor:
    """Gradient (N, D) of the log prior, with the transforms' Jacobians, at unconstrained points (N, D)."""
    scores: Tensor = problem.vmap(grad(problem.log_prior))(points)
    return scores


def prior_scores_and_values(problem: Problem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Both of the log prior, (N, D) and (N,); arguments as for `prior_scores`."""
    score, value = problem.vmap(grad_and_value(problem.log_prior))(points)
    return score, value


def likelihood_scores(problem: Problem, points: Tensor, batch: Batch | None = None) -> Tensor:
    """Gradient (N, D) of the log-likelihood of weighted rows, all by default, at unconstrained points (N, D)."""

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    scores: Tensor = problem.vmap(grad(log_lik))(points)
    return scores


def likelihood_scores_and_values(problem: Problem, points: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradient (N, D) and value (N,), summed in float64, of the log-likelihood of weighted rows at points (N, D)."""

    def log_lik(z: Tensor) -> Tensor:
        return (problem.log_parts(z, batch.rows, *batch.near)[1] * batch.weight).double().sum()

    score, value = problem.vmap(grad_and_value(log_lik))(points)
    return score, value


def clients_likelihood_scores(problem: Problem, points: Tensor, data: ClientData) -> Tensor:
    """Scores (C, N, D) of all rows of C clients, in the points' dtype, at unconstrained points (C, N, D) of each.

    Many rows are processed in pieces, so that memory does not grow with them; clients and points are too if a row of a
    large model makes many numbers.
    """
    densities = points.shape[0] * points.shape[1] * problem.num_nodes
    if not are_many(data, densities):
        return _by_points(problem, points, data)
    zero = torch.zeros(points.shape, dtype=torch.float64, device=points.device)
    scores: Tensor = by_pieces(problem, likelihood_scores, zero, points, data, densities).to(points.dtype)
    return scores


def clients_likelihood_scores_and_values(problem: Problem, points: Tensor, data: ClientData) -> tuple[Tensor, Tensor]:
    """`clients_likelihood_scores` (C, N, D) and the log-likelihoods (C, N), float64, of a model that is not large."""
    zero = torch.zeros(points.shape[:2], dtype=torch.float64, device=points.device)
    start = torch.zeros(points.shape, dtype=torch.float64, device=points.device), zero
    score, value = over_rows(problem, likelihood_scores_and_values, start, points, data)
    return score.to(points.dtype), value


def _by_points(problem: Problem, points: Tensor, data: ClientData) -> Tensor:
    """Scores of all clients at all points at once, or client by client at as many points as memory allows."""
    scores = problem.mapped(likelihood_scores, (0, BATCHES))
    everything = points.shape[0] * points.shape[1]
    size = problem.traits.affordable_points(data.row_index.shape[-1], everything)
    if size >= everything:
        whole: Tensor = scores(points, data.full_batch())
        return whole
    found = torch.empty_like(points)
    for client in range(len(points)):
        own = slice(client, client + 1)
        batch = data.of(own).full_batch()
        for at, into in zip(points[own].split(size, 1), found[own].split(size, 1), strict=True):
            into.copy_(scores(at, batch))
    return found


def likelihood_curves(problem: Problem, at: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    """∇² log p(x | θ) v, (N, D), of weighted rows; `at` has points θ (N, D) and directions v (N, D)."""

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    def slope_along(z: Tensor, direction: Tensor) -> Tensor:
        return hessian_product(log_lik, z, problem.forward_mode)[2](direction)

    curves: Tensor = problem.vmap(slope_along)(*at)
    return curves


def clients_likelihood_curves(problem: Problem, points: Tensor, directions: Tensor, data: ClientData) -> Tensor:
    """`likelihood_curves` (C, N, D) of all rows of C clients, in pieces if they are many, in the points' dtype."""
    zero = torch.zeros(points.shape, dtype=torch.float64, device=points.device)
    curves: Tensor = over_rows(problem, likelihood_curves, zero, (points, directions), data, calls=0)
    return curves.to(points.dtype)


def are_many(data: ClientData, densities: int) -> bool:
    """Whether rows are to be processed in pieces, see `by_pieces`; `densities` of a row of each client."""
    numbers = DENSITY_NUMBERS * densities * data.row_index.shape[-1]
    return not fits_in_memory(numbers) and all(isinstance(leaf, Tensor) for leaf in data.rows)


def over_rows(
    problem: Problem,
    function: Callable[..., Any],
    start: Any,
    points: Any,
    data: ClientData,
    width: int = 1,
    calls: int = 1,
) -> Any:
    """`function(problem, points, batch)` of C clients' rows, at once, or `by_pieces` if they are many.

    `width` is how many densities a point takes, and `calls` is that of `Problem.mapped`.
    """
    clients, count = pytree.tree_leaves(points)[0].shape[:2]
    densities = clients * count * width * problem.num_nodes
    if are_many(data, densities):
        return by_pieces(problem, function, start, points, data, densities)
    return problem.mapped(function, (0, BATCHES), calls=calls)(points, data.full_batch())


def by_pieces(
    problem: Problem, function: Callable[..., Any], zero: Any, points: Any, data: ClientData, densities: int
) -> Any:
    """Sums, like `zero`, of `function(problem, points, batch)` over C clients' rows, in pieces that fit a cache."""
    index, weight = row_pieces(data, count_in_cache(densities))
    const = (data.rows, points)
    return problem.scan(_Sum(function).add, zero, const, (index, weight), len(index), (None, 0))[0]


@dataclass(frozen=True)
class _Sum:
    """A sum over pieces of one client's rows."""

    function: Callable[..., Any]

    def add(self, problem: Problem, total: Any, const: Any, piece: tuple[Tensor, Tensor]) -> tuple[Any, tuple[()]]:
        (rows, points), (index, weight) = const, piece
        found = self.function(problem, points, Batch(tuple(leaf[index] for leaf in rows), weight))
        return pytree.tree_map(lambda t, part: t + part.double(), total, found), ()


def log_likelihoods(problem: Problem, points: Tensor, batch: Batch) -> Tensor:
    """Log-likelihood (N,) of weighted rows at unconstrained points (N, D)."""
    return problem.log_lik(points, batch)


def clients_log_likelihoods(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """Log-likelihood (C, S), float64, of all rows of C clients at unconstrained draws (C, S, D) of each."""
    each = len(draws) * problem.num_nodes
    together = min(draws.shape[1], math.isqrt(count_in_cache(each)))  # as many draws as rows in a piece
    densities = each * together
    if are_many(data, densities):
        zero = torch.zeros(draws.shape[:2], dtype=torch.float64, device=draws.device)
        pieces = zip(zero.split(together, 1), draws.split(together, 1), strict=True)
        return torch.cat([by_pieces(problem, log_likelihoods, *piece, data, densities) for piece in pieces], 1)
    return from_modes(problem, draws, data.full_batch(), partial(_at_draws, problem, draws), choose)


def _at_draws(problem: Problem, draws: Tensor, batch: Batch) -> Tensor:
    """Log-likelihood of a batch of each client's rows at each draw, (C, S), some draws at a time."""
    evaluate = problem.mapped(log_likelihoods, (0, BATCHES), calls=0)
    found = draws.new_empty(draws.shape[:2], dtype=torch.float64)  # remains of each piece would fragment freed memory
    done = 0
    for piece in in_chunks(draws, len(batch.weight) * batch.width() * problem.num_nodes, 1):
        found[:, done : done + piece.shape[1]] = evaluate(piece, batch)
        done += piece.shape[1]
    return found


def look_at_prior(problem: Problem, points: Tensor) -> Moments:
    """The log prior at points (M, D)."""
    return Moments(*(part[0].double() for part in problem.mapped(_look_at_log_prior, (0,))(points.unsqueeze(0))))


def look_at_likelihood(problem: Problem, points: Tensor, data: ClientData) -> Moments:
    """C clients' log-likelihoods at points (C, M, D): by their rows' structure, or in pieces, if rows are many."""
    clients, count, dim = points.shape
    found = at_each(problem, points, data) or at_each_composed(problem, points, data)
    if found is not None:
        return found
    zero = torch.zeros(clients, count, dtype=torch.float64, device=points.device)
    start = Moments(zero, zero.new_zeros(points.shape), zero.new_zeros(*points.shape, dim))
    seen: Moments = over_rows(problem, _look_at_batch, start, points, data, 1 + dim)
    return seen


def _look_at_log_prior(problem: Problem, points: Tensor) -> Moments:
    return _look(problem, problem.log_prior, points)


def _look_at_batch(problem: Problem, points: Tensor, batch: Batch) -> Moments:
    return _look(problem, lambda z: problem.log_lik(z, batch), points)


def _look(problem: Problem, log_density: Callable[[Tensor], Tensor], points: Tensor) -> Moments:
    seen: Moments = problem.vmap(lambda z: second_order(log_density, z, problem.vmap, problem.forward_mode))(points)
    return seen


def flat_direction(problem: Problem, precision: Tensor) -> str:
    """A direction that neither data nor priors inform, such as "'a' - 'b'", from the precision at the mode; or "".

    Proper priors inform all directions, and a diagonal precision shows none.
    """
    if not problem.layout.improper or precision.dim() == 1:
        return ""
    scale = precision.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    values, directions = torch.linalg.eigh(scale[:, None] * precision * scale)
    # An eigenvalue of no curvature is rounding, for each parameter.
    if float(values[0]) > SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * problem.dim * float(values[-1]):
        return ""
    parts = directions[:, 0] * scale
    parts = parts / parts.abs().max()
    largest = parts.abs().argsort(descending=True, stable=True)[:MAX_NAMED_PARTS].sort().values.tolist()
    first, *others = [i for i in largest if float(parts[i].abs()) > NEGLIGIBLE]
    signs = ["+" if bool(parts[i] * parts[first] > 0) else "-" for i in others]
    return f"'{problem.name_of(first)}'" + "".join(
        f" {sign} '{problem.name_of(i)}'" for sign, i in zip(signs, others, strict=True)
    )
