"""Points and rows at which a model is examined: near zero, and where its prior has its mass."""

from __future__ import annotations

import torch
from torch import Tensor

#: SD of the points near zero.
NEAR_ZERO_SD = 0.1
#: Half the width of the interval for latents whose prior cannot be drawn from, and of the second point.
RADIUS = 2.0
#: Largest distance from zero: a heavy tail's draw overflows, and shows nothing.
MAX_PRIOR_DRAW = 50.0
#: Draws of the prior at which densities are examined, the first of them where each costs a run of its own or more than
#: a density; and draws among which one with a finite density is looked for.
NUM_DRAWS, FEW_DRAWS, MAX_TRIES = 32, 4, 100
#: Rows that are examined together; and the number where few of all are.
ROWS_TOGETHER, FEW_ROWS = 2048, 64


def points_near_zero(count: int, dim: int) -> Tensor:
    """The first points near zero, (count, dim), float64: always the same."""
    generator = torch.Generator().manual_seed(0)
    return NEAR_ZERO_SD * torch.randn(count, dim, generator=generator, dtype=torch.float64)


def points_within_radius(count: int, dim: int) -> Tensor:
    """The first points, uniform on (-RADIUS, RADIUS), (count, dim), float64: always the same."""
    generator = torch.Generator().manual_seed(0)
    return RADIUS * (2 * torch.rand(count, dim, generator=generator, dtype=torch.float64) - 1)
