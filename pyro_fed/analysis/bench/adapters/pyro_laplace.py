"""Pyro's Laplace approximation on the pooled data: AutoLaplaceApproximation after 2,000 steps of Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation
from pyro.infer.autoguide.initialization import init_to_feasible
from pyro.optim import ClippedAdam

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

#: The rate falls from the first to the last over the steps.
STEPS, FIRST, LAST = 3000, 0.05, 0.0001


def run(model: Any, clients: Clients) -> Any:
    """Find the mode, take the curvature there, draw; it has nothing to say of itself."""
    guide: Any = AutoLaplaceApproximation(model, init_loc_fn=init_to_feasible)
    optimiser = ClippedAdam({"lr": FIRST, "lrd": (LAST / FIRST) ** (1 / STEPS)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(STEPS):
        svi.step(*clients.pooled)
    gaussian = guide.laplace_approximation(*clients.pooled)
    drawn = Predictive(gaussian, num_samples=clients.num_draws)(*clients.pooled)
    draws = {name: value.detach()[None] for name, value in drawn.items() if not name.startswith("_")}
    return clients.result(draws, draws_are="independent", settings=f"{STEPS} steps of ClippedAdam")
