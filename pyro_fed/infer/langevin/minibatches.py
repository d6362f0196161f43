"""Minibatches of a visit, for clients of which some take all of their rows."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from pyro_fed.density.rows.batches import Minibatch


@lru_cache(maxsize=8)
def no_picks(batch_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Empty minibatches of a client that takes all its rows: `minibatches_at` fills them if others have some."""
    return {
        "position": torch.zeros(0, batch_size, dtype=torch.int64),
        "weight": torch.zeros(0, batch_size, dtype=dtype),
    }


def minibatches_at(position: Tensor, weight: Tensor, num_rows: Tensor, steps: int) -> Minibatch:
    """Minibatches (T, C, m), T `steps`, with all rows for the clients that have at most m, which drew none.

    `position` has the rows drawn, (T, C, m), or (0, C, m) if no client has drawn any; `weight` has the same shape, and
    `num_rows` (C,).
    """
    slot = torch.arange(position.shape[-1], device=num_rows.device)
    rows = num_rows.unsqueeze(-1)
    if not len(position):  # no client drew any
        position, weight = (part.new_zeros(steps, *part.shape[1:]) for part in (position, weight))
    whole, has = rows <= len(slot), slot < rows
    position = torch.where(whole, slot % rows.clamp_min(1), position)
    return Minibatch(position, torch.where(whole, has.to(weight.dtype), weight))
