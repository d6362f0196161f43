"""The largest curvature of clients' log densities, by power iteration on products with their Hessians.

One product costs two gradients, so that a curvature costs about forty.
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


def largest_likelihood_curvature(problem: Problem, position: Tensor, batch: Batch) -> Tensor:
    """Largest curvature, in absolute value, of each client's log-likelihood at (C, D): (C,)."""
    product = problem.mapped(_likelihood_curve, (0, 0, BATCHES), calls=0)
    return power_iteration(lambda v: product(position, v, batch), position)


def power_iteration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The eigenvalue of largest magnitude of each client's symmetric matrix, (C,), as its products tell.

    Args:
        product: v (C, D) → the matrices times v, (C, D).
        like: (C, D), the shape and dtype of v.
    """
    tiny = torch.finfo(like.dtype).tiny
    direction, value = torch.ones_like(like), like.new_zeros(len(like))
    for _ in range(ITERATIONS):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(tiny)
        image = product(direction)
        value = (direction * image).sum(-1)
        direction = image
    return value


def _likelihood_curve(problem: Problem, z: Tensor, direction: Tensor, batch: Batch) -> Tensor:
    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    pull_back = vjp(grad(log_lik), z)[1]
    image: Tensor = pull_back(direction)[0]
    return -image
