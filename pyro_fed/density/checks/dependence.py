"""Which latents a quantity of the model depends on: one run with all of them at zero, and derivatives there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.running.handlers import Execution
from pyro_fed.density.running.trace_sites import Message


def run_at_zero(bound: BoundModel) -> tuple[Execution, dict[str, Tensor]]:
    """A run on all rows that can be differentiated, and the latents' unconstrained values by name.

    Args:
        bound: the model and its arguments.

    Returns:
        the run, and each latent's unconstrained value, a zero tensor that derivatives can be taken in.
    """
    places: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        places[msg["name"]] = torch.zeros(shape, dtype=bound.dtype, requires_grad=True)
        return places[msg["name"]]

    with torch.enable_grad():
        return bound.execute(source, bound.all_rows), places


def derivatives(value: Tensor, places: dict[str, Tensor]) -> dict[str, Tensor]:
    """Derivatives of a value's sum in the latents that it was computed from; those may be zero.

    Args:
        value: any shape, computed in a run by `run_at_zero`.
        places: that run's latents.

    Returns:
        by name of the latent, of its unconstrained shape.
    """
    if not value.requires_grad:
        return {}
    with torch.enable_grad():
        found = torch.autograd.grad(value.sum(), list(places.values()), allow_unused=True, retain_graph=True)
    return {name: part for name, part in zip(places, found, strict=True) if part is not None}
