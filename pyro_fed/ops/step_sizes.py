"""Step sizes: AdaGrad with momentum, and the polynomial schedule.

Source: Kassab & Simeone, Section 7 ("AdaGrad with momentum") and Table 3; the formulas are those of the
original SVGD code, on which that table builds; Welling & Teh (2011) for the schedule.

    G_0 = g_0²,    G_t = momentum G_{t-1} + (1 - momentum) g_t²
    theta_{t+1} = theta_t + epsilon_t g_t / (fudge + sqrt(G_t))
    epsilon_t = a (b + t)^-gamma

Letters: g ``direction``, G ``history``, epsilon ``rate``, a ``scale``, b ``offset``, gamma ``power``.

In spite of its name this is RMSProp, started at g_0² and without AdaGrad's growing sum: at a constant rate the steps do
not shrink and the particles do not come to rest. ``power`` > 0 adds a decay that the papers do not have,
epsilon_t = rate (1 + t / offset)^-power; the default is the papers' constant rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


def polynomial_step(count: Tensor | float, scale: float, offset: float, power: float) -> Tensor | float:
    """The step size a (b + t)^-gamma, of the type and shape of `count`, the number t of steps made so far.

    Robbins and Monro's conditions (infinite sum of steps, finite sum of squares) hold for power in
    (0.5, 1]; power 0 is the constant step ``scale``.

    Raises:
        ValueError: if a setting is outside its range.
    """
    if scale <= 0 or offset <= 0 or not 0 <= power <= 1:
        raise ValueError(
            "polynomial_step: expected scale > 0, offset > 0 and power in [0, 1], "
            f"received scale={scale}, offset={offset}, power={power}"
        )
    return scale * (offset + count) ** -power


class AdaGradState(NamedTuple):
    """Running mean of squared directions and the number of steps made (0-d)."""

    history: Tensor
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class AdaGrad:
    """AdaGrad with momentum as in the SVGD reference code."""

    rate: float  # epsilon, the master step size
    momentum: float = 0.9  # weight of the past in the running mean of squares
    fudge: float = 1e-6  # added to the root of that mean, in units of the direction
    power: float = 0.0  # decay of the rate; 0 keeps it constant, as the papers do
    offset: float = 1.0  # number of steps after which the decay has reached 2^-power

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.fudge <= 0 or self.offset <= 0:
            raise ValueError(
                "AdaGrad: expected rate, fudge and offset > 0, "
                f"received rate={self.rate}, fudge={self.fudge}, offset={self.offset}"
            )
        if not (0 <= self.momentum < 1 and 0 <= self.power <= 1):
            raise ValueError(
                "AdaGrad: expected momentum in [0, 1) and power in [0, 1], "
                f"received momentum={self.momentum}, power={self.power}"
            )

    def step(self, direction: Tensor, state: AdaGradState) -> tuple[Tensor, AdaGradState]:
        """The increment of the particles, of the shape of `direction`, and the new state."""
        squared = direction.square()
        mixed = self.momentum * state.history + (1.0 - self.momentum) * squared
        history = torch.where(state.steps == 0, squared, mixed)
        rate = polynomial_step(state.steps, self.rate * self.offset**self.power, self.offset, self.power)
        increment = rate * direction / (self.fudge + history.sqrt())
        return increment, AdaGradState(history, state.steps + 1)

    def rates(self, after: AdaGradState) -> Tensor:
        """The factor, of its shape, that multiplied the direction of the step with this new state."""
        rate = polynomial_step(after.steps - 1, self.rate * self.offset**self.power, self.offset, self.power)
        return rate / (self.fudge + after.history.sqrt())
