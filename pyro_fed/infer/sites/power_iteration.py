"""Largest curvature of the clients' log-likelihoods, by power iteration: one product H v costs two gradients.

v ← H v / |H v|,    λ = v' H v
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch

#: Power iterations; the estimate is a lower bound, within a few percent after twenty.
ITERATIONS = 20


def power_iteration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The eigenvalue of largest absolute value of each of C symmetric matrices.

    Args:
        product: vectors (C, D) to their images under the matrices.
        like: a tensor (C, D) of the vectors' dtype and device.

    Returns:
        (C,).
    """
    tiny = torch.finfo(like.dtype).tiny
    direction, value = torch.ones_like(like), like.new_zeros(len(like))
    for _ in range(ITERATIONS):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(tiny)
        image = product(direction)
        value = (direction * image).sum(-1)
        direction = image
    return value


def largest_likelihood_curvature(problem: Problem, position: Tensor, batch: Batch) -> Tensor:
    """Curvature of largest absolute value of each client's log-likelihood.

    Args:
        problem: the model's densities.
        position: where, (C, D).
        batch: all rows of the clients.

    Returns:
        (C,), positive where the log-likelihood is concave in that direction.
    """
    product = problem.mapped(_curve, (0, 0, BATCHES), calls=0)
    return power_iteration(lambda v: product(position, v, batch), position)


def _curve(problem: Problem, z: Tensor, direction: Tensor, batch: Batch) -> Tensor:
    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    pull_back = vjp(grad(log_lik), z)[1]
    slope: Tensor = pull_back(direction)[0]
    return -slope
