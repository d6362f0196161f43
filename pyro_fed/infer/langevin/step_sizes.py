"""Step sizes h of chains: their decrease, and their largest value at a client.

    h_t = h_0 (1 + t / b)^-γ          t steps of the chain before, b `decay_offset`, γ `decay`

A derived step is as short as the steepest client needs (`curvature.longest_steps`). All clients have the same steps
from the next round on: chains whose steps depend on the client that they are at have another stationary law.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.ops.step_sizes import polynomial_step

#: Shares of the chains' step that are one up to rounding, in any dtype: a client that needs a shorter step has at most
#: `curvature.SHORTENED` of it.
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
