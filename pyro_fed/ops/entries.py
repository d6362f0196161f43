"""Selections of entries of tensors: by flags of the leading axes, evenly spaced, or far apart."""

from __future__ import annotations

import torch
from torch import Tensor

#: Number of evenly spaced entries that represent a longer vector, or of draws that represent more.
SAMPLED_ENTRIES = 1000
#: Number of draws among which `far_apart` chooses one.
CANDIDATES = 4


def with_trailing_axes(values: Tensor, like: Tensor) -> Tensor:
    """Values (*batch) with trailing axes of size one, up to the number of axes of `like` (*batch, ...)."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


def choose(which: Tensor, new: Tensor, old: Tensor | float) -> Tensor:
    """Entries of `new` (*batch, ...) where `which` (*batch) is True, of `old` elsewhere; NaN does not spread."""
    return torch.where(with_trailing_axes(which, new), new, old)


def all_finite(values: Tensor) -> bool:
    """Whether all entries are finite; a finite sum shows it without further memory."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def evenly(count: int, most: int) -> Tensor:
    """Evenly spaced indices below `count`, the first and the last included: all of them, or `most`."""
    return torch.linspace(0, count - 1, min(most, count)).long().clamp_max(count - 1)  # float32 rounds large counts


def farthest(draws: Tensor, count: int) -> Tensor:
    """Indices (..., count) of the draws (..., S, D) that are farthest from their mean, in SDs of each number."""
    away = draws.double() - draws.double().mean(-2, keepdim=True)
    sd = draws.double().std(-2, correction=0, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return (away / sd).square().sum(-1).topk(count).indices


def far_apart(draws: Tensor, count: int) -> Tensor:
    """Indices (count,), int64, of draws (N, D): the first draws for half, then the farthest from those so far."""
    # Distances are of ranks, so that long tails do not attract all choices. A basin with a small share of the draws, at
    # their edge, gets one, where independent draws may give it none.
    ranks = draws.argsort(0).argsort(0).double() / len(draws)
    chosen = torch.arange(-(-count // 2), device=draws.device)
    nearest = torch.cdist(ranks, ranks[chosen]).amin(1)
    for _ in range(count - len(chosen)):
        farthest = nearest.argmax()
        chosen = torch.cat([chosen, farthest[None]])
        nearest = torch.minimum(nearest, (ranks - ranks[farthest]).norm(dim=1))
    return chosen
