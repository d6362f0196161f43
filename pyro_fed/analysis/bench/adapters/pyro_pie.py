"""Posterior interval estimation by Pyro's NUTS at each client (Li, Srivastava & Dunson 2017): quantiles are averaged.

Every client samples the prior times its rows' likelihood to the power N / n_k, as if all N rows were like its own n_k.
The average of the clients' quantiles of a parameter, on the unconstrained scale, is the Wasserstein barycentre of its
marginal posteriors. One round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyro_fed.analysis.bench.subposteriors import nuts_at_clients

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients


def run(model: Any, clients: Clients) -> Any:
    """One chain a client, then the average of the sorted draws, in the order of the first client's."""
    each = nuts_at_clients(model, clients, likelihood=[sum(clients.row_counts) / n for n in clients.row_counts])
    quantiles = each.draws.sort(1).values.mean(0)
    return each.result(quantiles.gather(0, each.draws[0].argsort(0).argsort(0)))
