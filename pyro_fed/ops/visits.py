"""How far a chain's variance grows when it visits clients whose scores are wrong, and how long a visit may last.

In coordinates in which the posterior is N(0, I), with time t = h × steps, a chain at client s follows

    dθ = (-θ + e_s)/2 dt + dW,    Σ_s f_s e_s = 0

so that a visit of time t takes the mean from x to a x + (1 - a) e_s, a = exp(-t/2), and the errors e_s, of variance s²
over the clients, add V to the variance of what the chain draws at the ends of its visits:

    drawn anew for each visit    V = s² (1 - a)/(1 + a) = s² tanh(t/4),    near t s²/4 for short visits

Where each sweep takes the n clients once, in random order, two errors of a sweep have covariance -s²/(n - 1). With
Δ_k the errors' part after k visits of a sweep that began at zero,

    Var Δ_k = (1 - a)² s² [ n Σ_j a^2j - (Σ_j a^j)² ]/(n - 1),    j = 0 .. k-1
    V = mean over k = 1 .. n of    a^2k Var Δ_n / (1 - a^2n) + Var Δ_k

near (n + 1) t² s²/24 for short sweeps: what one client does the others undo. For n = 1 there is no error, and V = 0.
"""

from __future__ import annotations

import math

import numpy as np

from pyro_fed.ops.backtrack import HALVINGS


def visit_variance(time: float, num_clients: int, shuffled: bool) -> float:
    """V/s² of visits of time t to n clients, see the module's header.

    `shuffled` says whether each sweep takes every client once; else they are drawn anew for each visit.
    """
    if num_clients == 1:
        return 0.0
    if not shuffled:
        return math.tanh(time / 4)
    keep, n = math.exp(-time / 2), num_clients
    visits = np.arange(1, n + 1)
    powers = keep ** (visits - 1)
    within = (1 - keep) ** 2 * (n * np.cumsum(powers**2) - np.cumsum(powers) ** 2) / (n - 1)
    before = keep ** (2 * visits) * within[-1] / (1 - keep ** (2 * n))
    return float((before + within).mean())


def longest_visit(error: float, score_variance: float, num_clients: int, shuffled: bool, limit: float) -> float:
    """The longest visit t, at most `limit`, for which V is at most `error`, a share of the posterior's variance.

    `score_variance` is s².
    """

    def fits(time: float) -> bool:
        return score_variance * visit_variance(time, num_clients, shuffled) <= error

    if fits(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high
