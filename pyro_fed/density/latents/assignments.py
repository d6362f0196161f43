"""Draws of discrete latents from their posterior, at the client, given draws of everything else.

The sites are drawn one after the other,  k_1 ~ p(k_1 | y, z),  k_2 ~ p(k_2 | k_1, y, z), ...,  each with the later
ones summed out: an exact draw of all of them, what `pyro.infer.infer_discrete` makes of a model, as a pure function
that `vmap` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.density.latents.discrete import log_weights

if TYPE_CHECKING:
    from pyro_fed.density.layout import Site
    from pyro_fed.density.problem import Problem


def draw_uniforms(
    sites: Mapping[str, Site], num_draws: int, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The randomness of `draw_assignments`: a number in [0, 1) for each value of each site, (S, *batch shape)."""
    return {
        name: torch.rand(num_draws, *site.batch_shape, generator=generator, dtype=dtype) for name, site in sites.items()
    }


def draw_assignments(problem: Problem, z: Tensor, uniforms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One draw of every discrete site of all rows, and of the deterministic sites that depend on them.

    Args:
        problem: the model's densities.
        z: (D,) unconstrained vector.
        uniforms: each (*batch shape).

    Returns:
        site name → (*site shape).
    """
    known: dict[str, Tensor] = {}
    for name in problem.layout.discrete:
        trace = problem.execute_at(z, problem.all_rows, densities=True, discrete=known).trace
        known[name] = _pick(trace, name, uniforms[name])
    trace = problem.execute_at(z, problem.all_rows, discrete=known).trace
    return known | {name: trace.nodes[name]["value"] for name in problem.layout.depends_on_discrete}


def _pick(trace: Any, name: str, uniform: Tensor) -> Tensor:
    fn = trace.nodes[name]["fn"]
    cdf = log_weights(trace, name).softmax(-1).cumsum(-1)
    number = (uniform.unsqueeze(-1) >= cdf[..., :-1]).sum(-1)
    support = fn.enumerate_support(expand=False).reshape(-1, *fn.event_shape)
    picked: Tensor = support[number]
    return picked


def assign(problem: Problem, z: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Draws of the discrete latents given z (S, D), and of the deterministic sites that depend on them.

    Args:
        problem: the model's densities.
        z: (S, D) unconstrained vectors.
        generator: source of randomness.

    Returns:
        site name → (S, *site shape).
    """
    uniforms = draw_uniforms(problem.layout.discrete, len(z), generator, problem.dtype)
    draws: dict[str, Tensor] = problem.vmap(lambda one, u: draw_assignments(problem, one, u))(z, uniforms)
    return draws
