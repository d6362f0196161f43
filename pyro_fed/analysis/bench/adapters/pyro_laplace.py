"""Pyro's Laplace approximation on the pooled data: AutoLaplaceApproximation after 3,000 steps of Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro.infer.autoguide import AutoLaplaceApproximation
from pyro.infer.autoguide.initialization import init_to_feasible

from pyro_fed.analysis.bench.adapters.pyro_svi_normal import fit, guide_result

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

#: It looks at `clients.pooled` alone.
POOLED = True


def run(model: Any, clients: Clients, steps: int = 3000) -> Any:
    """Find the mode, take the curvature there and draw; the method has no diagnostics."""
    guide = AutoLaplaceApproximation(model, init_loc_fn=init_to_feasible)
    guide = fit(guide, model, clients, steps, first=0.05, last=0.0001)
    return guide_result(guide.laplace_approximation(*clients.pooled), clients, steps)
