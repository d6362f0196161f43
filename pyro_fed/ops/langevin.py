"""Steps of (stochastic gradient, preconditioned) Langevin dynamics.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Eq. (1); Welling & Teh (2011).

    theta_{t+1} = theta_t + h_t / 2 v(theta_t) + eta_t,    eta_t ~ N(0, h_t I)                         (1)

Letters: theta ``position``, v ``score`` (gradient of the log density, exact or estimated), h ``step_size``,
eta_t = sqrt(h_t) ``noise``. So h is the *variance* of the injected noise in each coordinate and the drift
takes half of it: a step of the form theta + epsilon v + sqrt(2 epsilon) xi is h = 2 epsilon.

With a preconditioner G = A A' (``factor`` A; G is an inverse mass, close to the posterior covariance)

    theta_{t+1} = theta_t + h_t / 2 G v(theta_t) + sqrt(h_t) A xi_t,

which is Eq. (1) in the coordinates A⁻¹ theta. G must not depend on theta.

*Visits.* A chain that visits clients whose scores have errors e_s has a larger variance. In coordinates in which the
posterior is N(0, I), with time t = h × steps, it follows at client s

    dθ = (-θ + e_s)/2 dt + dW,    Σ_s f_s e_s = 0

A visit of time t moves the mean from x to a x + (1 - a) e_s, a = exp(-t/2). The errors e_s, of variance s² over the
clients, add V to the variance of the chain at the ends of its visits. If each visit draws a client anew,

    V = s² (1 - a)/(1 + a) = s² tanh(t/4),    near t s²/4 for short visits

If each sweep visits the n clients once, in random order, two errors of a sweep have covariance -s²/(n - 1). Let Δ_k be
the errors' contribution after k visits of a sweep that begins at zero. Then

    Var Δ_k = (1 - a)² s² [ n Σ_j a^2j - (Σ_j a^j)² ]/(n - 1),    j = 0 .. k-1
    V = mean over k = 1 .. n of    a^2k Var Δ_n / (1 - a^2n) + Var Δ_k

V is near (n + 1) t² s²/24 for short sweeps, since the clients' errors cancel. For n = 1 there is no error, and V = 0.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from pyro_fed.ops.backtrack import bisected

#: Smallest h λ at which a step does not contract; λ is the largest eigenvalue of A'HA, H the density's curvature.
STABLE = 4.0


def langevin_step(
    position: Tensor, score: Tensor, step_size: float | Tensor, noise: Tensor, factor: Tensor | None = None
) -> Tensor:
    """The position (..., D) after a step of Eq. (1) with standard normal noise xi (..., D).

    A preconditioning factor A, G = A A', is (D,) for a diagonal one or (D, D).
    """
    return drifted(position, pulled(score, factor), step_size, injected(step_size, noise, factor), factor)


def injected(step_size: float | Tensor, noise: Tensor, factor: Tensor | None = None) -> Tensor:
    """A step's noise eta_t = sqrt(h_t) A xi_t, (..., D); arguments as for `langevin_step`."""
    root = step_size.sqrt() if isinstance(step_size, Tensor) else math.sqrt(step_size)
    return root * (noise if factor is None else _apply_factor(noise, factor))


def pulled(score: Tensor, factor: Tensor | None = None) -> Tensor:
    """A' v, the score in preconditioned coordinates, (..., D); arguments as for `langevin_step`."""
    if factor is None:
        return score
    return factor * score if factor.ndim == 1 else score @ factor  # rows hold positions: A'v is v'A


def drifted(
    position: Tensor, pulled: Tensor, step_size: float | Tensor, injected: Tensor, factor: Tensor | None = None
) -> Tensor:
    """The next position (..., D) of a step, from its `injected` noise and `pulled` score."""
    along = pulled if factor is None else _apply_factor(pulled, factor)
    return position + 0.5 * step_size * along + injected


def _apply_factor(white: Tensor, factor: Tensor) -> Tensor:
    """A x, (..., D)."""
    return factor * white if factor.ndim == 1 else white @ factor.transpose(-1, -2)


def visit_variance(time: float, num_clients: int, shuffled: bool) -> float:
    """V/s² for visits of time t to n clients, which are `shuffled` in each sweep or drawn anew for each visit."""
    if num_clients == 1:
        return 0.0
    if not shuffled:
        return math.tanh(time / 4)
    decay, n = math.exp(-time / 2), num_clients
    visits = np.arange(1, n + 1)
    powers = decay ** (visits - 1)
    within = (1 - decay) ** 2 * (n * np.cumsum(powers**2) - np.cumsum(powers) ** 2) / (n - 1)
    before = decay ** (2 * visits) * within[-1] / (1 - decay ** (2 * n))
    return float((before + within).mean())


def longest_visit(error: float, score_variance: float, num_clients: int, shuffled: bool, limit: float) -> float:
    """The largest t, up to `limit`, for which V is at most `error`, a share of the posterior's variance."""

    def fits(time: float) -> bool:
        return score_variance * visit_variance(time, num_clients, shuffled) <= error

    return bisected(fits, limit)[1]
