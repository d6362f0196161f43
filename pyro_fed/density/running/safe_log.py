"""Pyro's `safe_log`, a function of autograd that `torch.func` cannot take, in terms that it can.

The logarithm with its derivative 1 / max(x, eps), of any order and under `vmap`. Pyro's hidden Markov models use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.ops import special
from torch import Tensor


class SafeLog:
    """Replacement of `pyro.ops.special._SafeLog`."""

    @staticmethod
    def apply(x: Tensor) -> Tensor:
        """The logarithm of non-negative values, with a finite derivative at zero."""
        eps = torch.finfo(x.dtype).eps
        large = x > eps
        below = x.detach().log() + (x - x.detach()) / eps
        return torch.where(large, torch.where(large, x, 1.0).log(), below)


@contextmanager
def mappable_safe_log() -> Iterator[None]:
    """A context that uses it while a model runs."""
    patched: Any = special
    original = patched._SafeLog
    patched._SafeLog = SafeLog
    try:
        yield
    finally:
        patched._SafeLog = original
