"""Sites by expected Newton steps: "newton".

    Λ ← E_q̂[-∇² log p_k],   η ← E_q̂[∇ log p_k] + Λ m̂,   q̂ ← q_-k · site        `local_steps` times, from q̂ = q

This is natural-gradient variational inference with step one (Bui et al. 2018, Property 4; Khan & Nielsen 2018): a
fixed point minimises KL(q̂ ‖ p_k q_-k). With several steps each is backtracked so that q̂ stays proper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Noise
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.tilted.base import Client, Received, Tilted
from pyro_fed.infer.sites.gaussian_sites import site_of, spread_points
from pyro_fed.ops.backtrack import backtrack


@dataclass(frozen=True, kw_only=True)
class Newton(Client):
    """Expected Newton steps at Sobol points, the same for all clients.

    Args:
        local_steps: steps a round.
        num_points: Sobol points.
        min_fraction: a local step smaller than this is not made.
        margin: of the backtracking of local steps.
    """

    local_steps: int
    num_points: int
    min_fraction: float
    margin: float

    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """New sites."""
        batch, q_hat = data.full_batch(), received.q
        for _ in range(self.local_steps):
            points = spread_points(q_hat, self.num_points)
            moments = self.derivatives.of_likelihood(problem, points, batch)
            site = site_of(moments, q_hat.mean())
            if self.local_steps > 1:
                delta = site.product(received.cavity).quotient(q_hat)
                taken = backtrack(q_hat, delta, min_fraction=self.min_fraction, margin=self.margin)
                q_hat = q_hat.product(delta.power(taken))
        if self.local_steps > 1:
            site = q_hat.quotient(received.cavity)
        finite = site.precision.flatten(1).isfinite().all(1) & site.eta.isfinite().all(1)
        return Tilted(site, finite, {"expected_log_lik": torch.where(finite, moments.value, torch.nan)})
