"""Product of Gaussians fitted to each client's draws by Pyro's NUTS (Neiswanger et al. 2014, Section 3.1).

Every client samples its rows' likelihood times the prior to the power 1/K; the answer is N(Λ⁻¹ Σ Λ_k m_k, Λ⁻¹) with
Λ = Σ Λ_k, on the unconstrained scale. One round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pyro_fed.analysis.bench.subposteriors import inverse_covariances, nuts_at_clients

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients


def run(model: Any, clients: Clients) -> Any:
    """One chain a client, then the product."""
    each = nuts_at_clients(model, clients, prior=1 / len(clients))
    weights = inverse_covariances(each.draws)
    mean = torch.linalg.solve(weights.sum(0), torch.einsum("kij,kj->i", weights, each.draws.mean(1)))
    product = torch.distributions.MultivariateNormal(mean, precision_matrix=weights.sum(0))
    sent = (weights.nelement() + each.draws[:, 0].nelement()) * weights.element_size()  # a mean and a precision each
    return each.result(product.sample((clients.num_draws,)), sent)
