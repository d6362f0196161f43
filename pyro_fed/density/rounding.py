"""Rounding of sums over many rows."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.conventions.limits import ROUNDING_UNITS


def rounding_of(values: Tensor) -> Tensor:
    """How much sums and log densities of these sizes may err through rounding."""
    return ROUNDING_UNITS * torch.finfo(values.dtype).eps * values.abs()
