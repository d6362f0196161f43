"""Pyro's SVI on the pooled data, AutoNormal: 2,000 steps of Adam at a falling rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_feasible
from pyro.optim import ClippedAdam

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

#: The rate falls from the first to the last over the steps.
STEPS, FIRST, LAST = 2000, 0.03, 0.0003


def run(model: Any, clients: Clients) -> Any:
    """Fit and draw; it has nothing to say of itself."""
    guide: Any = AutoNormal(model, init_loc_fn=init_to_feasible)
    optimiser = ClippedAdam({"lr": FIRST, "lrd": (LAST / FIRST) ** (1 / STEPS)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(STEPS):
        svi.step(*clients.pooled)
    drawn = Predictive(guide, num_samples=clients.num_draws)(*clients.pooled)
    draws = {name: value.detach()[None] for name, value in drawn.items() if not name.startswith("_")}
    return clients.result(draws, draws_are="independent", settings=f"{STEPS} steps of ClippedAdam")
