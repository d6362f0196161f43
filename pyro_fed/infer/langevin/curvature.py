"""Largest curvature along a step, by power iteration, and the largest stable step.

    θ' = θ + h/2 G s(θ) + noise,    s'(θ) = -H:    stable while h λ < 4, λ the largest eigenvalue of A'HA, G = A A'

(see `ops.langevin` for the derivation). One product A'HA v costs two gradients, so λ costs about forty.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.algorithm.contract import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.conducive import full_score
from pyro_fed.ops.matrices import times, times_transposed

#: h λ from which on a Langevin step no longer contracts.
STABLE = 4.0
#: Power iterations; the estimate is a lower bound, within a few percent after twenty.
ITERATIONS = 20


def largest_curvature(problem: Problem, position: Tensor, local: State, batch: Batch) -> Tensor:
    """λ of each client's score at its chain's position.

    Args:
        problem: the model's densities.
        position: (C, D).
        local: the clients' states, see `infer.conducive`.
        batch: all rows of the clients.

    Returns:
        (C,), negative where the dominant curvature points outwards.
    """
    product = problem.mapped(_curve, (0, 0, dict.fromkeys(local, 0), BATCHES), calls=0)
    return _power_iteration(lambda v: product(position, v, local, batch), position)


def largest_likelihood_curvature(problem: Problem, position: Tensor, batch: Batch) -> Tensor:
    """Largest curvature, in absolute value, of each client's log-likelihood at (C, D): (C,)."""
    product = problem.mapped(_likelihood_curve, (0, 0, BATCHES), calls=0)
    return _power_iteration(lambda v: product(position, v, batch), position)


def _power_iteration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    tiny = torch.finfo(like.dtype).tiny
    direction, value = torch.ones_like(like), like.new_zeros(len(like))
    for _ in range(ITERATIONS):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(tiny)
        image = product(direction)
        value = (direction * image).sum(-1)
        direction = image
    return value


def _curve(problem: Problem, z: Tensor, direction: Tensor, local: State, batch: Batch) -> Tensor:
    """A'HA v of one client."""
    pull_back = vjp(lambda z: full_score(problem, z, local, batch), z)[1]
    # The Jacobian of a score is symmetric, so that v'J is (J v)'.
    return -times_transposed(local["factor"], pull_back(times(local["factor"], direction))[0])


def _likelihood_curve(problem: Problem, z: Tensor, direction: Tensor, batch: Batch) -> Tensor:
    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    pull_back = vjp(grad(log_lik), z)[1]
    return -pull_back(direction)[0]


def check_step(name: str, step_size: Tensor, curvature: Tensor, clients: Tensor) -> None:
    """Refuse steps beyond stability before they are made.

    Args:
        name: of the algorithm.
        step_size: h, (C,).
        curvature: λ, (C,).
        clients: their numbers, (C,).

    Raises:
        SettingError: names the client, h λ and the largest stable step.
    """
    product = step_size * curvature
    worst = int(torch.where(torch.isfinite(product), product, -torch.inf).argmax())
    if bool(product[worst] >= STABLE):
        limit = STABLE / float(curvature[worst])
        raise SettingError(
            f"{name}, client {int(clients[worst])}: step_size {float(step_size[worst]):.3g} times the largest "
            f"curvature {float(curvature[worst]):.3g} is {float(product[worst]):.3g}, and from {STABLE:g} on Langevin "
            f"steps diverge; the visit was not made. The largest stable step is {limit:.3g}; a tenth of it is accurate"
        )
