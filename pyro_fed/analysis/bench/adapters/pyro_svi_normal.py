"""Pyro's SVI on the pooled data, AutoNormal: 2,000 steps of Adam at a falling rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_feasible
from pyro.optim import ClippedAdam

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

#: It looks at `clients.pooled` alone.
POOLED = True
#: Steps of the optimiser.
STEPS = 2000


def run(model: Any, clients: Clients) -> Any:
    """Fit and draw; the method has no diagnostics."""
    guide = fit(AutoNormal(model, init_loc_fn=init_to_feasible), model, clients)
    return guide_result(guide, clients)


def fit(guide: Any, model: Any, clients: Clients, steps: int = STEPS, first: float = 0.03, last: float = 0.0003) -> Any:
    """Fit an automatic guide to the pooled data by Adam, whose rate falls from `first` to `last`."""
    optimiser = ClippedAdam({"lr": first, "lrd": (last / first) ** (1 / steps)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(steps):
        svi.step(*clients.pooled)
    return guide


def guide_result(guide: Any, clients: Clients, steps: int = STEPS) -> Any:
    """Draw from a fitted guide; `steps` is the number of steps taken, which the page shows."""
    found = Predictive(guide, num_samples=clients.num_draws)(*clients.pooled)
    # With plates in the model `Predictive` puts their axes, of length one, into sites outside them.
    draws = {name: found[name].detach().reshape(1, -1, *one.shape) for name, one in guide(*clients.pooled).items()}
    return clients.result(draws, draws_are="independent", settings=f"{steps} steps of ClippedAdam")
