"""Value, score and curvature of log densities at many points at once, as Newton's method asks for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp

from pyro_fed.density.derivatives.composed_rows import at_each_composed
from pyro_fed.density.derivatives.rowwise import LEAST_STRUCTURE_WORK, at_each
from pyro_fed.density.derivatives.scores import are_many, by_pieces
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.ops.newton_ascent import Look

#: Rounds of a search, for which the structure of rows is determined once.
USUAL_ROUNDS = 10
#: Units of rounding, of the model's dtype and for each parameter, that the smallest eigenvalue of a precision whose
#: diagonal is scaled to one may have if there is no curvature; and parts of such a direction that are named.
FLAT_UNITS, MOST_NAMED_PARTS, NAMED_PART = 10.0, 4, 0.1


def look_at_prior(problem: Problem, points: Tensor) -> Look:
    """The log prior at points (M, D)."""
    return Look(*(part[0].double() for part in problem.mapped(_look_at_log_prior, (0,))(points.unsqueeze(0))))


def look_at_likelihood(problem: Problem, points: Tensor, data: ClientData) -> Look:
    """C clients' log-likelihoods at points (C, M, D): by their rows' structure, or in pieces, if rows are many."""
    clients, count, dim = points.shape
    # With one point, `FedLaplace` has looked for the structure before: asking for it costs nothing.
    if count == 1 or problem.num_rows * dim * count * USUAL_ROUNDS >= LEAST_STRUCTURE_WORK:
        found = at_each(problem, points, data) or at_each_composed(problem, points, data)
        if found is not None:
            return Look(*found)
    densities = clients * count * (1 + dim) * problem.num_nodes
    if not are_many(data, densities):
        whole: Look = problem.mapped(_look_at_batch, (0, BATCHES))(points, data.full_batch())
        return whole
    zero = torch.zeros(clients, count, dtype=torch.float64, device=points.device)
    start = Look(zero, zero.new_zeros(points.shape), zero.new_zeros(*points.shape, dim))
    total: Look = by_pieces(problem, _look_at_batch, start, points, data, densities)
    return total


def _look_at_log_prior(problem: Problem, points: Tensor) -> Look:
    return _look(problem, problem.log_prior, points)


def _look_at_batch(problem: Problem, points: Tensor, batch: Batch) -> Look:
    return _look(problem, lambda z: problem.log_lik(z, batch), points)


def _look(problem: Problem, log_density: Callable[[Tensor], Tensor], points: Tensor) -> Look:
    def at(z: Tensor) -> Look:
        (score, value), pull = vjp(grad_and_value(log_density), z)[:2]
        directions = torch.eye(len(z), dtype=z.dtype, device=z.device)
        hessian = problem.vmap(lambda v: pull((v, torch.zeros_like(value)))[0])(directions)
        return Look(value, score, -hessian)

    seen: Look = problem.vmap(at)(points)
    return seen


def flat_direction(problem: Problem, precision: Tensor) -> str:
    """A direction that neither data nor priors inform, such as "'a' - 'b'", from the precision at the mode; or "".

    Proper priors inform all directions, and a diagonal precision shows none.
    """
    if not problem.layout.improper or precision.dim() == 1:
        return ""
    scale = precision.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    values, directions = torch.linalg.eigh(scale[:, None] * precision * scale)
    if float(values[0]) > FLAT_UNITS * torch.finfo(problem.dtype).eps * problem.dim * float(values[-1]):
        return ""
    parts = directions[:, 0] * scale
    parts = parts * parts[parts.abs().argmax()].sign() / parts.abs().max()
    largest = parts.abs().argsort(descending=True, stable=True)[:MOST_NAMED_PARTS].sort().values.tolist()
    terms = [(parts[i] < 0, f"'{problem.name_of(i)}'") for i in largest if float(parts[i].abs()) > NAMED_PART]
    first, *others = terms
    return ("-" if first[0] else "") + first[1] + "".join(f" {'-' if minus else '+'} {name}" for minus, name in others)
