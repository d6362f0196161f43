"""A model at points of its flat vector: log-likelihoods, and scores, the gradients of log prior and log-likelihood."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, in_chunks


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
    batch = data.full_batch()
    evaluate = problem.mapped(log_likelihoods, (0, BATCHES), calls=0)
    found = draws.new_empty(draws.shape[:2], dtype=torch.float64)  # what each piece left would split the freed memory
    done = 0
    for piece in in_chunks(draws, len(batch.weight) * batch.width() * problem.num_nodes, 1):
        found[:, done : done + piece.shape[1]] = evaluate(piece, batch)
        done += piece.shape[1]
    return found
