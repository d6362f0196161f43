"""One-shot Bayesian federated inference (Jonker, Pazira & Coolen 2024): each client's mode and curvature, combined.

    A = Σ A_k,   θ = A⁻¹ Σ A_k θ_k

with θ_k the mode of client k's rows and the prior to the power 1/K, and A_k the curvature there, on the unconstrained
scale: the paper's estimator if every client's prior has a share Λ/K of the precision Λ. The answer is N(θ, A⁻¹).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.analysis.bench.subposteriors import Subposteriors, densities

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients


def run(model: Any, clients: Clients) -> Any:
    """A mode a client, then the product of the Gaussians there."""
    found = [mode_of(*one) for one in densities(model, clients, prior=1 / len(clients))]
    modes, curvatures = (torch.stack(parts) for parts in zip(*found, strict=True))
    total = curvatures.sum(0)
    mean = torch.linalg.solve(total, torch.einsum("kij,kj->i", curvatures, modes))
    draws = torch.distributions.MultivariateNormal(mean, precision_matrix=total).sample((clients.num_draws,))
    sent = (modes.nelement() + curvatures.nelement()) * modes.element_size()
    return Subposteriors(model, clients, modes[:, None]).result(draws, sent, "L-BFGS at each client")


def mode_of(potential: Any, start: Tensor, iterations: int = 500) -> tuple[Tensor, Tensor]:
    """A minimum of a potential by L-BFGS, (D,), and its curvature there, (D, D)."""
    point = start.clone().requires_grad_()
    search = torch.optim.LBFGS([point], max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Any:
        search.zero_grad()
        value = potential(point)
        value.backward()
        return value

    search.step(loss)
    mode = point.detach()
    return mode, torch.autograd.functional.hessian(potential, mode)
