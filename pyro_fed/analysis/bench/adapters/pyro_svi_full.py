"""Pyro's SVI on the pooled data, AutoMultivariateNormal: 2,000 steps of Adam at a falling rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_feasible

from pyro_fed.analysis.bench.adapters.pyro_svi_normal import fit, guide_result

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

#: It looks at `clients.pooled` alone.
POOLED = True


def run(model: Any, clients: Clients) -> Any:
    """Fit and draw; the method has no diagnostics."""
    guide = fit(AutoMultivariateNormal(model, init_loc_fn=init_to_feasible), model, clients)
    return guide_result(guide, clients)
