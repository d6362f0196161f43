"""Largest curvature of the clients' log-likelihoods, by power iteration: one product H v costs two gradients.

v ← H v / |H v|,    λ = v' H v
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fed.density.derivatives import clients_likelihood_curves
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData

#: Power iterations; the estimate is a lower bound, within a few percent after twenty.
ITERATIONS = 20


def power_iteration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The eigenvalue of largest absolute value (C,) of symmetric matrices, whose `product` maps vectors (C, D)."""
    tiny = torch.finfo(like.dtype).tiny
    direction, value = torch.ones_like(like), like.new_zeros(len(like))
    for _ in range(ITERATIONS):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(tiny)
        image = product(direction)
        value = (direction * image).sum(-1)
        direction = image
    return value


def largest_likelihood_curvature(problem: Problem, position: Tensor, data: ClientData) -> Tensor:
    """Largest curvature (C,) in size of each client's log-likelihood at `position` (C, D), positive if concave."""

    def product(directions: Tensor) -> Tensor:
        return -clients_likelihood_curves(problem, position[:, None], directions[:, None], data)[:, 0]

    return power_iteration(product, position)
