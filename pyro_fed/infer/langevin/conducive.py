"""Score estimates at a client: DSGLD's, its control variate, and the conducive gradient.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Eq. (4)-(7), Algorithm 1.

    d_s(θ) = ∇ log p(θ) + N_s/(f_s m) Σ_batch ∇ log p(x | θ)                                     (4)
    g_s(θ) = ∇ log q(θ) - 1/f_s ∇ log q_s(θ)                                                          (6)
    score(θ) = d_s(θ) + α g_s(θ)                                                                      (7)

With Gaussian surrogates g_s is linear, so that a client holds its value at one point θ* and its slope:

    g_s(θ) = g_s(θ*) - (P - P_s/f_s)(θ - θ*),    P = Σ_s P_s

and one evaluation costs one product of a matrix and a vector, whatever the number of clients.

Deviations, each a setting of `langevin.langevin`:

* `trust`: beyond R posterior SDs from θ*, g_s is taken at the point of that distance in θ's direction. P - P_s/f_s
  is indefinite, so that far out g_s would drive a chain away exponentially while it stays at one client. The point
  is the same for all clients, so the f-weighted mean of g_s is still zero.
* `control_variate`: Σ_batch ∇ log p(x | θ) becomes Σ_batch [∇ log p(x | θ) - ∇ log p(x | θ*)] plus the gradient of
  all rows at θ*, which each client computes once (Baker et al., 2019), or at the chain's own position when a visit
  begins, which it computes every time (SVRG-LD, Dubey et al., 2016).

Letters, in the client's state: 1/f_s `inverse_f`, θ* `anchor` (of the control variate `visited` where
that is another), α g_s(θ*) `pull`, α (P - P_s/f_s) `pull_slope`, R
`trust_radius`, the metric of r `metric`, the gradient at θ* `anchor_score`, A of the preconditioner A A' `factor`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times_transposed


def linear_pull(sites: Gaussian, shares: Tensor, anchor: Tensor, weight: float) -> State:
    """α g_s at the anchor, and its slope.

    Args:
        sites: q_s, batch (K,).
        shares: f_s, (K,).
        anchor: θ*, (D,).
        weight: α.

    Returns:
        `pull` (K, D) and `pull_slope` (K, D, D) or (K, D), in the anchor's dtype.
    """
    own = sites.power(1 / shares.to(sites.eta.dtype))
    product = sites.product_over()
    at = anchor.to(sites.eta.dtype)
    value = product.score(at) - own.score(at)
    slope = product.precision - own.precision
    return {"pull": (weight * value).to(anchor.dtype), "pull_slope": (weight * slope).to(anchor.dtype)}


def full_score(problem: Problem, z: Tensor, local: State, batch: Batch) -> Tensor:
    """d_s + α g_s from a batch, without control variate: z (D,) → (D,)."""

    def log_target(z: Tensor) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, batch.rows)
        return log_prior + local["inverse_f"] * (pointwise * batch.weight).sum()

    unbiased: Tensor = grad(log_target)(z)
    return unbiased + conducive(z, local)


def score(problem: Problem, z: Tensor, local: State, batch: Batch) -> Tensor:
    """d_s + α g_s from a batch, with control variate where the client has one: z (D,) → (D,)."""
    if "anchor_score" not in local:
        return full_score(problem, z, local, batch)

    def log_target(z: Tensor, prior_weight: Tensor) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, batch.rows)
        return prior_weight * log_prior + local["inverse_f"] * (pointwise * batch.weight).sum()

    # One pass for both points; the prior has no rows and needs no correction.
    both = torch.stack([z, _anchor(local)])
    here, there = problem.vmap(grad(log_target))(both, torch.eye(2, dtype=z.dtype, device=z.device)[0])
    corrected: Tensor = here - there + local["inverse_f"] * local["anchor_score"]
    return corrected + conducive(z, local)


def anchor_score(problem: Problem, local: State, batch: Batch) -> Tensor:
    """Gradient of a batch's log-likelihood at the anchor: (D,)."""
    slope: Tensor = grad(lambda z: problem.log_lik(z, batch))(_anchor(local))
    return slope


def _anchor(local: State) -> Tensor:
    """Where the control variate is taken, (D,)."""
    return local.get("visited", local["anchor"])


def conducive(z: Tensor, local: State) -> Tensor:
    """α g_s at θ, or at the nearest trusted point: (D,); zero where the client has no surrogate."""
    if "pull" not in local:
        return torch.zeros_like(z)
    offset = z - local["anchor"]
    # Both matrices are symmetric: compiled, sums that run along columns are several times as fast.
    slope = times_transposed(local["pull_slope"], offset)
    if "trust_radius" in local:
        distance = (offset * times_transposed(local["metric"], offset)).sum().sqrt()
        slope = (local["trust_radius"] / distance).clamp_max(1.0) * slope
    return local["pull"] - slope
