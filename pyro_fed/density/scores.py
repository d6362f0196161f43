"""A model at points of its flat vector: log-likelihoods, and scores, the gradients of log prior and log-likelihood."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch


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
