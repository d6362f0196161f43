"""Step sizes h of chains: their decrease, and their largest value at a client.

    h_t = h_0 (1 + t / b)^-γ          t steps of the chain before, b `decay_offset`, γ `decay`

A derived step is as short as the steepest client needs (`longest_steps`). All clients have the same steps
from the next round on: chains whose steps depend on the client that they are at have another stationary law.

The largest curvature along a step is found by power iteration, and gives the largest stable step.

    θ' = θ + h/2 G s(θ) + noise,    s'(θ) = -H:    stable while h λ < 4, λ the largest eigenvalue of A'HA, G = A A'

(see `ops.langevin` for the derivation). One product A'HA v costs two gradients, so λ costs about forty.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from pyro_fed.ops.step_sizes import polynomial_step

#: Shares of the chains' step that are one up to rounding, in any dtype: a client that needs a shorter step has at most
#: `STABLE_STEP_SHARE` of it.
SAME_STEP = 0.999


@dataclass(frozen=True)
class StepSizes:
    """The steps of a visit.

    Args:
        local_steps: T.
        decay: γ; 0 keeps the step constant.
        decay_offset: b.
    """

    local_steps: int
    decay: float
    decay_offset: float

    def of_visit(self, done: Tensor, step_size: Tensor) -> Tensor:
        """h of each step of a visit, (T, ...), from h_0 (...) and the number of earlier steps, of that shape or ()."""
        if not self.decay:
            return step_size.expand(self.local_steps, *step_size.shape)
        steps = done + torch.arange(self.local_steps, device=done.device).reshape(-1, *[1] * done.dim())
        scale = step_size * self.decay_offset**self.decay
        decay = polynomial_step(steps.to(scale.dtype), 1.0, self.decay_offset, self.decay)
        found: Tensor = scale * decay
        return found

    def shortest_share(self, done: Tensor, step_size: Tensor, stride: int, used: Tensor) -> float:
        """The smallest share of its full length that a step had at a client; 1 if all steps were of full length.

        `done` is the number of steps before the first of R rounds, `stride` the steps between those compared, and
        `used` h of the steps that were made, (R, C, T / stride).
        """
        each = done + self.local_steps * torch.arange(len(used))
        whole = self.of_visit(each, step_size.expand(len(used)))[stride - 1 :: stride]
        share = float((used / whole.T.unsqueeze(1)).amin())
        return share if 0 < share < SAME_STEP else 1.0


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
