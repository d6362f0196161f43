"""Points and rows at which a model is examined: near zero, and where its prior has its mass."""

from __future__ import annotations

import torch
from torch import Tensor

#: SD of the points near zero.
NEAR_ZERO_SD = 0.1
#: Half the width of the interval for latents whose prior cannot be sampled, and for the second point.
RADIUS = 2.0
#: Largest distance from zero; draws of heavy tails overflow.
MAX_PRIOR_DRAW = 50.0
#: Number of prior draws at which densities are examined; the number if each needs a run of its own or costs more than a
#: density; and the number of draws in the search for a finite density.
NUM_DRAWS, FEW_DRAWS, MAX_TRIES = 32, 4, 100
#: Number of rows that are examined together, and size of a small sample of rows.
ROWS_TOGETHER, FEW_ROWS = 2048, 64


def points_near_zero(count: int, dim: int) -> Tensor:
    """The first points near zero, (count, dim), float64, by a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return NEAR_ZERO_SD * torch.randn(count, dim, generator=generator, dtype=torch.float64)


def points_within_radius(count: int, dim: int) -> Tensor:
    """The first points, uniform on (-RADIUS, RADIUS), (count, dim), float64, by a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return RADIUS * (2 * torch.rand(count, dim, generator=generator, dtype=torch.float64) - 1)
