"""Largest curvature along a step, by power iteration, and the largest stable step.

    θ' = θ + h/2 G s(θ) + noise,    s'(θ) = -H:    stable while h λ < 4, λ the largest eigenvalue of A'HA, G = A A'

(see `ops.langevin` for the derivation). One product A'HA v costs two gradients, so λ costs about forty.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vjp

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.gradients import Score
from pyro_fed.infer.sites.power_iteration import power_iteration
from pyro_fed.ops.langevin import STABLE
from pyro_fed.ops.matrices import times, times_transposed

#: A derived step that is unstable becomes this share of the largest stable one.
STABLE_STEP_SHARE = 0.25


def largest_curvature(problem: Problem, position: Tensor, score: Score, factor: Tensor, batch: Batch) -> Tensor:
    """λ (C,) of each client's score at its chain's position (C, D); negative if the dominant curvature is outward."""
    product = problem.mapped(_curve, (0, 0, 0, 0, BATCHES), calls=0)
    return power_iteration(lambda v: product(position, v, score, factor, batch), position)


def _curve(problem: Problem, z: Tensor, direction: Tensor, score: Score, factor: Tensor, batch: Batch) -> Tensor:
    """A'HA v of one client."""
    pull_back = vjp(lambda z: score.estimate(problem, z, batch)[0], z)[1]
    # The Jacobian of a score is symmetric, so that v'J is (J v)'.
    return -times_transposed(factor, pull_back(times(factor, direction))[0])


def longest_steps(step_size: Tensor, curvature: Tensor) -> Tensor:
    """Longest derived steps at clients where a step h (C,) was unstable, from λ (C,); infinite elsewhere.

    A derived step fits the curvature where that was measured. A density that is steeper where a chain is, such as
    exp(θ) where a Gaussian reaches far to the right, needs shorter ones.
    """
    beyond = step_size * curvature >= STABLE
    return torch.where(beyond, STABLE_STEP_SHARE * STABLE / curvature, torch.inf)


def check_step(name: str, step_size: Tensor, curvature: Tensor, clients: Tensor) -> None:
    """Refuse steps h (C,) that are unstable at curvature λ (C,), before they are made; `name` is the algorithm's.

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
