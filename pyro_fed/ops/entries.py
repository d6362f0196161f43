"""Which entries of tensors: by numbers or flags of the leading axes, with more axes behind them; or evenly spaced."""

from __future__ import annotations

import torch
from torch import Tensor


def widened(values: Tensor, like: Tensor) -> Tensor:
    """Values (*batch) with as many trailing axes of one as `like` (*batch, ...) has more."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


def choose(which: Tensor, new: Tensor, old: Tensor | float) -> Tensor:
    """Entries of `new` (*batch, ...) where `which` (*batch), of `old` elsewhere, whatever the others hold."""
    return torch.where(widened(which, new), new, old)


def evenly(count: int, most: int) -> Tensor:
    """Evenly spaced places among `count`, the first and the last too: all of them, or `most`."""
    return torch.linspace(0, count - 1, min(most, count)).long()
