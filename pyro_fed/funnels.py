"""Where chains struggle in a hierarchical model: location-scale sites whose scale is itself latent.

In x ~ N(mu, tau²) with little data on x the posterior narrows with tau, to the neck of a funnel that no step size
fits. The non-centred form x = mu + tau x', x' ~ N(0, 1), has no neck (Papaspiliopoulos, Roberts and Sköld 2007).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Independent

from pyro_fed.trace_sites import Message

if TYPE_CHECKING:
    from pyro_fed.problem import Problem


def funnels(problem: Problem) -> dict[str, list[str]]:
    """Centred location-scale sites of the flat vector, and the latents that their scales depend on."""
    places: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        places[msg["name"]] = torch.zeros(shape, dtype=problem.dtype, requires_grad=True)
        return places[msg["name"]]

    with torch.enable_grad():
        trace = problem.execute(source, problem.all_rows).trace
    found = {}
    for name in problem.sites:
        fn = trace.nodes[name]["fn"]
        while isinstance(fn, Independent):
            fn = fn.base_dist
        if {"loc", "scale"} <= set(fn.arg_constraints) and fn.scale.requires_grad:
            scores = _scores(fn.scale, list(places.values()))
            on = zip(places, scores, strict=True)  # a scale to the power of zero depends on it by name alone
            found[name] = [other for other, score in on if score is not None and bool(score.any())]
    return {name: on for name, on in found.items() if on}


def _scores(scale: Tensor, places: list[Tensor]) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        return torch.autograd.grad(scale.sum(), places, allow_unused=True, retain_graph=True)


def funnel_hint(problem: Problem) -> list[str]:
    """What to try where chains do not mix: the sites to reparameterise, and how."""
    sites = funnels(problem)
    if not sites:
        return []
    scales = "; ".join(f"the scale of '{name}' depends on {on}" for name, on in sites.items())
    config = ", ".join(f"'{name}': LocScaleReparam(0.0)" for name in sites)
    return [
        f"a funnel is likely: {scales}. Where data say little of it, give it the non-centred form: from "
        f"pyro.infer.reparam import LocScaleReparam; model = pyro.poutine.reparam(model, config={{{config}}})"
    ]
