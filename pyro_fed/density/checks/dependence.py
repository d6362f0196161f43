"""The latents that a quantity of the model depends on: one run at a point, and derivatives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.running.handlers import Execution
from pyro_fed.density.running.trace_sites import Message


def run_at_zero(bound: BoundModel) -> tuple[Execution, dict[str, Tensor]]:
    """A differentiable run on all rows at zero, and the latents' unconstrained values, in the graph, by name."""
    return _run(bound, lambda shape: torch.zeros(shape, dtype=bound.dtype))


def run_at_random(bound: BoundModel, generator: torch.Generator) -> tuple[Execution, dict[str, Tensor]]:
    """A differentiable run at a standard normal point, where no derivative is zero by chance, with log densities."""
    return _run(bound, lambda shape: torch.randn(shape, dtype=bound.dtype, generator=generator), densities=True)


def _run(
    bound: BoundModel, point: Callable[[Any], Tensor], densities: bool = False
) -> tuple[Execution, dict[str, Tensor]]:
    places: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        places[msg["name"]] = point(shape).requires_grad_()
        return places[msg["name"]]

    with torch.enable_grad():
        return bound.execute(source, bound.all_rows, densities=densities), places


def derivatives(value: Tensor, places: dict[str, Tensor]) -> dict[str, Tensor]:
    """Derivatives of a value's sum in its run's latents, by name; zero ones are included, unused latents are not."""
    if not value.requires_grad:
        return {}
    with torch.enable_grad():
        found = torch.autograd.grad(value.sum(), list(places.values()), allow_unused=True, retain_graph=True)
    return {name: part for name, part in zip(places, found, strict=True) if part is not None}
