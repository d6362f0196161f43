"""The first run of a model: all rows, Pyro's validation on, at a point of which what follows can make use.

From it come the plates' sizes, the sites, and, where nothing is enumerated, the densities that `factorisation` compares
with those of some rows. The point is near zero, but not at it, where much of a model does not show: at w = 0 a
regression is the same whatever its covariates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.checks.negative_lookups import NegativeLookups
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.errors import PyroFedError

#: Spread of the unconstrained points at which a model is checked.
SPREAD = 0.1


class FirstRun(NamedTuple):
    """A run of the model on all of its rows.

    Attributes:
        execution: its trace and the plates that it declared.
        point: unconstrained values of the latent sites, in the order in which the model met them.
        spread: of that point; 0 is zero.
    """

    execution: Execution
    point: dict[str, Tensor]
    spread: float


def first_run(run: Callable[[Source], Execution], dtype: torch.dtype) -> FirstRun:
    """A validated run near zero; at zero where Pyro's validation refuses that point (p + q < 1, say).

    Args:
        run: runs the model on all rows, validated, with latents from its argument.
        dtype: of the latents.

    Raises:
        ModelError: a site that cannot be handled.
        Exception: whatever the model raises.
    """
    try:
        return _run_at(run, SPREAD, dtype)
    except PyroFedError:
        raise
    except (ValueError, RuntimeError):
        return _run_at(run, 0.0, dtype)


def _run_at(run: Callable[[Source], Execution], spread: float, dtype: torch.dtype) -> FirstRun:
    generator = torch.Generator().manual_seed(0)
    point: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        point[msg["name"]] = spread * torch.randn(shape, generator=generator, dtype=dtype)
        return point[msg["name"]]

    with NegativeLookups() as lookups:
        execution = run(source)
    lookups.warn()
    return FirstRun(execution, point, spread)
