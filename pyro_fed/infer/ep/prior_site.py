"""The prior's own site t_0 at the server, which takes part by the same equations as the clients'.

    Λ_0 ← E_q[-∇² log p_0],   η_0 ← E_q[∇ log p_0] + Λ_0 m          an expected Newton step at q
    Δ_0 = (the site of this step) / t_0

A prior that is Gaussian on the unconstrained scale has one site at every q: then no round asks for Δ_0.
"""

from __future__ import annotations

from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.infer.ep.states import Server
from pyro_fed.infer.ep.tilted import TiltedInference
from pyro_fed.infer.sites.gaussian_sites import (
    FEWEST_POINTS,
    SpreadGaussian,
    add_batch_axis,
    at_mean,
    drop_batch_axis,
    site_of,
    spread_points,
)
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import Gaussian

#: Multiples of q's SDs at which the prior's site is compared; a Gaussian prior has the same site at each.
NEAR_AND_FAR = (1.0, 100.0)
#: Change of the prior's site, relative to it, that is single precision's rounding.
ROUNDING_SHARE = 1e-4


def change_at(
    algorithm: SpreadGaussian, solver: TiltedInference, problem: Problem, server: Server
) -> tuple[Gaussian, Tensor]:
    """Δ_0 at the server's q, and E_q[log p_0], ().

    The points and derivatives are the algorithm's; `solver`, the clients' inference, says whether a few points are
    tried first.
    """
    q, most = add_batch_axis(server.q), algorithm.points(add_batch_axis(server.q))
    few = solver.by_gradients and len(most) > FEWEST_POINTS
    points = spread_points(q, FEWEST_POINTS) if few else most
    moments, change = _newton_step(algorithm, problem, q, server.prior, points)
    if few and not _is_rounding(server.prior, change):  # a Gaussian prior needs no more
        moments, change = _newton_step(algorithm, problem, q, server.prior, most)
    return change, moments.value[0]


def never_changes(algorithm: SpreadGaussian, problem: Problem, q: Gaussian, prior: Gaussian) -> bool:
    """Whether t_0, `prior`, is the same near the initial q and far from it."""
    if not bool(q.is_proper()):
        return False
    for wide in NEAR_AND_FAR:
        at = add_batch_axis(at_mean(type(q)(q.precision / wide**2, q.eta), q.mean()))
        change = _newton_step(algorithm, problem, at, prior, spread_points(at, FEWEST_POINTS))[1]
        if not _is_rounding(prior, change):
            return False
    return True


def _newton_step(
    algorithm: SpreadGaussian, problem: Problem, q: Gaussian, prior: Gaussian, points: Tensor
) -> tuple[Moments, Gaussian]:
    """Means of the log prior over points (S, 1, D) under q, and Δ_0."""
    moments = algorithm.derivatives().of_prior(problem, points)
    return moments, drop_batch_axis(site_of(moments, q.mean())).quotient(prior)


def _is_rounding(prior: Gaussian, change: Gaussian) -> bool:
    """Whether a change Δ_0, as few points show it, is zero up to rounding."""
    own = prior.precision.diagonal() if prior.dense else prior.precision
    root = own.abs().sqrt()
    most = ROUNDING_SHARE * (root.unsqueeze(-1) * root if prior.dense else own.abs())
    still = change.eta.abs() <= ROUNDING_SHARE * (prior.eta.abs() + root)  # not a number is not less
    return bool(still.all() and (change.precision.abs() <= most).all())
