"""Which entries of tensors: by numbers or flags of the leading axes; evenly spaced, far apart; all finite."""

from __future__ import annotations

import torch
from torch import Tensor

#: Entries of a long vector, or draws of many, that stand for all of them, evenly spaced.
SAMPLED_ENTRIES = 1000
#: Draws for each of those that `far_apart` chooses.
CANDIDATES = 4


def with_trailing_axes(values: Tensor, like: Tensor) -> Tensor:
    """Values (*batch) with as many trailing axes of one as `like` (*batch, ...) has more."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


def choose(which: Tensor, new: Tensor, old: Tensor | float) -> Tensor:
    """Entries of `new` (*batch, ...) where `which` (*batch), of `old` elsewhere, whatever the rest contains."""
    return torch.where(with_trailing_axes(which, new), new, old)


def all_finite(values: Tensor) -> bool:
    """Whether all entries are finite: by the sum if that is finite, which takes no memory."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def evenly(count: int, most: int) -> Tensor:
    """Evenly spaced places among `count`, with the first and the last: all of them, or `most`."""
    return torch.linspace(0, count - 1, min(most, count)).long().clamp_max(count - 1)  # float32 rounds large counts


def far_apart(draws: Tensor, count: int) -> Tensor:
    """Numbers (count,), int64, of draws (N, D): the first half in order, then each the farthest by ranks."""
    # Ranks, so that long tails do not draw all of them. A basin that has a small share of the draws, at their edge, has
    # one of these where independent draws may have none.
    ranks = draws.argsort(0).argsort(0).double() / len(draws)
    chosen = torch.arange(-(-count // 2), device=draws.device)
    nearest = torch.cdist(ranks, ranks[chosen]).amin(1)
    for _ in range(count - len(chosen)):
        farthest = nearest.argmax()
        chosen = torch.cat([chosen, farthest[None]])
        nearest = torch.minimum(nearest, (ranks - ranks[farthest]).norm(dim=1))
    return chosen
