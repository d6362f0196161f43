"""Consensus Monte Carlo by Pyro's NUTS at each client (Scott et al. 2016), averages by inverse covariances.

Every client samples its rows' likelihood times the prior to the power 1/K; the server averages the draws, W_k the
inverse sample covariance, on the unconstrained scale: x = (Σ W_k)⁻¹ Σ W_k x_k. One round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pyro_fed.analysis.bench.subposteriors import inverse_covariances, nuts_at_clients

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients


def run(model: Any, clients: Clients) -> Any:
    """One chain a client, then the weighted average."""
    each = nuts_at_clients(model, clients, prior=1 / len(clients))
    weights = inverse_covariances(each.draws)
    average = torch.linalg.solve(weights.sum(0), torch.einsum("kij,ksj->is", weights, each.draws)).T
    return each.result(average)
