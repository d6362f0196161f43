"""Sites by expected Newton steps: "newton".

    Λ ← E_q̂[-∇² log p_k],   η ← E_q̂[∇ log p_k] + Λ m̂,   q̂ ← q_-k · site        `steps` times, from q̂ = q

This is natural-gradient variational inference with step one (Bui et al. 2018, Property 4; Khan & Nielsen 2018): a
fixed point minimises KL(q̂ ‖ p_k q_-k). With several steps each is backtracked so that q̂ stays proper, and a client
whose q̂ has come to rest makes no more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.sites.gaussian_sites import likelihood_points, moments_of, moves, site_of, where
from pyro_fed.ops.backtrack import backtracked

#: A client's q̂ is at rest when no mean has moved by more than this many SDs in a step, and no SD by more than this
#: share: a tenth of what the algorithm is asked for a round. Its fixed point is the same whatever this is.
REST = 1e-4


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Newton(TiltedInference):
    """Expected Newton steps at Sobol points, the same for all clients: natural-gradient variational inference.

    It has no randomness, and its fixed point in FedEP is the Gaussian of smallest KL(q ‖ posterior). The algorithm's
    `num_points`, `min_fraction` and `margin` say how many points there are and how far a step may go.

    Args:
        steps: steps a round, at most. With one the site is that of q itself; with more the cavity is held fixed and
            each step is backtracked, which is partitioned variational inference.
        enough: a turn also ends with a step no longer than this share of its first, in [0, 1): what is left is made in
            the client's next turn, so that the fixed point is the same.

    References:
        Bui et al. (2018), Partitioned variational inference, Property 4. Khan & Nielsen (2018).

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.Newton(steps=5)), fed)
    """

    steps: int = 1
    enough: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps")
        check_between(self, "enough", 0, 1, "[)")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites of the last step."""
        q_hat, derivatives, count = received.q, numerics.derivatives, numerics.num_points
        moving = torch.ones(len(q_hat.eta), dtype=torch.bool, device=q_hat.eta.device)
        value = torch.zeros(len(q_hat.eta), dtype=torch.float64, device=q_hat.eta.device)
        rest = torch.full_like(value, REST)
        for number in range(self.steps):
            root = q_hat.root() if q_hat.dense else None
            found = None if root is None else derivatives.under(problem, q_hat.mean(), root, count, data)
            moments = found or derivatives.of_likelihood(
                problem, likelihood_points(problem, q_hat, count), data.full_batch()
            )
            site = site_of(moments, q_hat.mean())
            if self.steps > 1:
                delta = site.product(received.cavity).quotient(q_hat)
                taken, moved = backtracked(q_hat, delta, min_fraction=numerics.min_fraction, margin=numerics.margin)
                goes = moving & (taken > 0)
                before, q_hat = q_hat, moved if bool(goes.all()) else where(goes, moved, q_hat)
            value = torch.where(moving, moments.value, value)
            if self.steps > 1:
                length = moves(moments_of(before), moments_of(q_hat)).amax(-1)
                if number == 0:
                    rest = torch.fmax(rest, self.enough * length)
                moving = moving & ~(length <= rest)
                if not bool(moving.any()):
                    break
        if self.steps > 1:
            site = q_hat.quotient(received.cavity)
        finite = site.precision.flatten(1).isfinite().all(1) & site.eta.isfinite().all(1)
        return Tilted(site, finite, {"expected_log_lik": torch.where(finite, value, torch.nan)})
