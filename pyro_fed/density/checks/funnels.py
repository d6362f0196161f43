"""Where chains struggle in a hierarchical model: location-scale sites whose scale is itself latent.

In x ~ N(mu, tau²) with little data on x the posterior narrows with tau, to the neck of a funnel that no step size
fits. The non-centred form x = mu + tau x', x' ~ N(0, 1), has no neck (Papaspiliopoulos, Roberts and Sköld 2007).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pyro_fed.density.checks.dependence import derivatives, run_at_zero
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import LocationScale
from pyro_fed.density.traits.record import Neck


def latent_scales(problem: Problem) -> Iterator[tuple[str, LocationScale, list[str]]]:
    """Location-scale sites of the flat vector whose scale is latent, at zero, and the latents that it depends on."""
    execution, places = run_at_zero(problem.bound)
    for name in problem.sites:
        with torch.enable_grad():  # a matrix's scale is expanded here, also in a run without derivatives
            pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is not None:
            # A scale to the power of zero depends on its base by name alone: its derivative is zero.
            on = [other for other, slope in derivatives(pair.scale, places).items() if bool(slope.any())]
            if on:
                yield name, pair, on


def funnels(problem: Problem) -> dict[str, list[str]]:
    """The sites whose scale is a number, which `LocScaleReparam` takes, and the latents that it depends on."""
    return {name: on for name, pair, on in latent_scales(problem) if not pair.is_matrix}


def necks_of_rows(problem: Problem) -> list[Neck]:
    """The necks of the rows' own latents, which are integrated out, if their scale is latent in the flat vector."""
    if not problem.layout.local:
        return []
    execution, places = run_at_zero(problem.bound)
    found = []
    for name in problem.layout.local:
        pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is None:
            continue
        with torch.enable_grad():
            size = pair.log_size.mean()
        slopes = derivatives(size, places)
        on = [other for other, slope in slopes.items() if other in problem.sites and bool(slope.any())]
        if on:
            parts = [slopes.get(other, torch.zeros_like(places[other])).reshape(-1) for other in problem.sites]
            found.append(Neck(name, on, float(size.detach()), torch.cat(parts)))
    return found


def funnel_hint(problem: Problem) -> list[str]:
    """A sentence on the sites to reparameterise if chains do not mix, and how; none for sites in that form already."""
    sites = {name: on for name, on in funnels(problem).items() if name not in problem.in_units_of_scale}
    if not sites:
        return []
    scales = "; ".join(
        f"the scale of '{name}' depends on {' and '.join(map(repr, on))}, itself latent" for name, on in sites.items()
    )
    config = ", ".join(f"'{name}': LocScaleReparam(0.0)" for name in sites)
    here = "run on fed.noncentred (fit(fed) tries that by itself), or "  # which leaves rows' own latents as they are
    return [
        f"a funnel is likely: {scales}. Where the data say little about it, use the non-centred form: "
        f"{'' if sites.keys() <= problem.layout.local.keys() else here}rewrite the model: from pyro.infer.reparam "
        f"import LocScaleReparam; model = pyro.poutine.reparam(model, config={{{config}}})"
    ]


def with_hint(said: str, problem: Problem) -> str:
    """The sentences `said`, without the last full stop, followed by the hint if there is one."""
    return ". ".join([said, *(hint[0].upper() + hint[1:] for hint in funnel_hint(problem))])
