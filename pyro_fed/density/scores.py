"""A model at points of its flat vector: log-likelihoods, and scores, the gradients of log prior and log-likelihood."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, BLOCK, CHUNK, Batch, ClientData, in_chunks, row_pieces

#: Points that are taken together where rows are worked through in pieces.
TOGETHER = 128


def prior_values(problem: Problem, points: Tensor) -> Tensor:
    """Log prior, with the transforms' Jacobians; arguments as for `prior_scores`, values (N,)."""
    return problem.log_prior(points)


def prior_scores(problem: Problem, points: Tensor) -> Tensor:
    """Gradient of the log prior, with the transforms' Jacobians.

    Args:
        problem: the model's densities.
        points: (N, D) unconstrained.

    Returns:
        (N, D).
    """
    scores: Tensor = problem.vmap(grad(problem.log_prior))(points)
    return scores


def likelihood_scores(problem: Problem, points: Tensor, batch: Batch | None = None) -> Tensor:
    """Gradient of the log-likelihood of some rows, each as often as its weight says.

    Args:
        problem: the model's densities.
        points: (N, D) unconstrained.
        batch: rows, of one client, say; all pooled rows by default.

    Returns:
        (N, D).
    """

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    scores: Tensor = problem.vmap(grad(log_lik))(points)
    return scores


def clients_likelihood_scores(problem: Problem, points: Tensor, data: ClientData) -> Tensor:
    """Scores of all rows of each of some clients, at points of its own.

    Rows are worked through in pieces where they are many, so that memory does not grow with them.

    Args:
        problem: the model's densities.
        points: (C, N, D) unconstrained, of each client.
        data: the clients' rows.

    Returns:
        (C, N, D), of the points' dtype.
    """
    clients, count = points.shape[:2]
    densities = clients * count * problem.num_nodes
    if densities * data.row_index.shape[-1] <= CHUNK or not all(isinstance(leaf, Tensor) for leaf in data.rows):
        whole: Tensor = problem.mapped(likelihood_scores, (0, BATCHES))(points, data.full_batch())
        return whole
    index, weight = row_pieces(data, max(1, BLOCK // densities))
    zero = torch.zeros(points.shape, dtype=torch.float64, device=points.device)
    const = (data.rows, points)
    total, _ = problem.scan(_add_scores, zero, const, (index, weight), len(index), (None, 0))
    scores: Tensor = total.to(points.dtype)
    return scores


def _add_scores(problem: Problem, total: Tensor, const: Any, piece: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
    """With the scores of a piece of one client's rows."""
    (rows, points), (index, weight) = const, piece
    batch = Batch(tuple(leaf[index] for leaf in rows), weight)
    return total + likelihood_scores(problem, points, batch).double(), ()


def log_likelihoods(problem: Problem, points: Tensor, batch: Batch) -> Tensor:
    """Log-likelihood of some rows, each as often as its weight says.

    Args:
        problem: the model's densities.
        points: (N, D) unconstrained.
        batch: rows, of one client, say.

    Returns:
        (N,).
    """
    return problem.log_lik(points, batch)


def clients_log_likelihoods(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """Log-likelihood of all rows of each of some clients: a number a client and draw.

    Args:
        problem: the model's densities.
        draws: (C, S, D) unconstrained, of each client.
        data: the clients' rows.

    Returns:
        (C, S), float64.
    """
    clients, count = draws.shape[:2]
    longest, densities = data.row_index.shape[-1], clients * min(count, TOGETHER) * problem.num_nodes
    if densities * longest > CHUNK and all(isinstance(leaf, Tensor) for leaf in data.rows):
        size = max(1, BLOCK // densities)
        return torch.cat([_by_pieces_of_rows(problem, piece, data, size) for piece in draws.split(TOGETHER, 1)], 1)
    batch = data.full_batch()
    evaluate = problem.mapped(log_likelihoods, (0, BATCHES), calls=0)
    found = draws.new_empty(draws.shape[:2], dtype=torch.float64)  # what each piece left would split the freed memory
    done = 0
    for piece in in_chunks(draws, len(batch.weight) * batch.width() * problem.num_nodes, 1):
        found[:, done : done + piece.shape[1]] = evaluate(piece, batch)
        done += piece.shape[1]
    return found


def _by_pieces_of_rows(problem: Problem, draws: Tensor, data: ClientData, size: int) -> Tensor:
    """The same over so many rows at a time."""
    start = torch.zeros(draws.shape[:2], dtype=torch.float64, device=draws.device)
    index, weight = row_pieces(data, size)
    total, _ = problem.scan(_add_values, start, (data.rows, draws), (index, weight), len(index), (None, 0))
    found: Tensor = total
    return found


def _add_values(problem: Problem, total: Tensor, const: Any, piece: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
    """With the log-likelihoods of a piece of one client's rows."""
    (rows, draws), (index, weight) = const, piece
    return total + log_likelihoods(problem, draws, Batch(tuple(leaf[index] for leaf in rows), weight)).double(), ()
