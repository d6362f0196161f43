"""The largest fraction of a change that leaves a Gaussian proper.

With q of precision P and a change of precision D, P + s D is positive definite exactly for
s < -1 / lambda_min if lambda_min < 0, and for every s >= 0 otherwise, where lambda_min is the smallest
eigenvalue of P^(-1/2) D P^(-1/2). The eigenvalues of P + s D relative to P are 1 + s lambda: the step keeps
them at least at ``margin``, so that no direction of q becomes wider than margin^(-1/2) of what it was.

All is computed in float64 with an equilibrated factor, so that the coordinates' scales do not matter. The fraction is
zero if q is not proper, if the change is not finite, or if the step would be too small.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import Gaussian

#: Largest number of halvings of a fraction or an interval: 2^-40 is 1e-12.
HALVINGS = 40
#: Largest number of iterations for a small problem of fixed size (a handful usually suffice), and the step, in SDs, at
#: which they end.
MAX_ITERATIONS, NEGLIGIBLE_STEP = 50, 1e-6
#: Smallest fraction that is worth taking.
MIN_FRACTION = 1e-6


def halved(fits: Callable[[float], bool], first: float = 1.0) -> float:
    """The first of `first`, `first` / 2, `first` / 4, ... that fits; 0 if none does."""
    for _ in range(HALVINGS):
        if fits(first):
            return first
        first /= 2
    return 0.0


def bisected(fits: Callable[[float], bool], limit: float) -> tuple[float, float]:
    """Two numbers, 2^-40 of the limit apart: the largest known to fit, and the smallest known not to fit."""
    if fits(limit):
        return limit, limit
    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def largest_fraction(q: Gaussian, delta: Gaussian) -> Tensor:
    """Supremum (...) of the s for which q δ^s is proper, in float64; may be infinite; 0 where undefined."""
    smallest = q.relative_change(delta).amin(-1)
    defined = q.is_proper() & torch.isfinite(smallest) & torch.isfinite(delta.eta).all(-1)
    # The division excludes zero: 1 / 0 would be right, but its gradient is NaN.
    limit = torch.where(smallest < 0, -1.0 / torch.where(smallest < 0, smallest, -1.0), torch.inf)
    return torch.where(defined, limit, 0.0)


def move(q: Gaussian, delta: Gaussian, fraction: Tensor) -> Gaussian:
    """q δ^s for fractions s (...), and exactly q where s = 0, even if the change is NaN or infinite there."""
    step = delta.power(fraction)
    still = fraction == 0
    wide = still.reshape(still.shape + (1,) * (delta.precision.ndim - delta.eta.ndim + 1))
    precision = torch.where(wide, 0.0, step.precision)
    return q.product(type(delta)(precision, torch.where(still.unsqueeze(-1), 0.0, step.eta)))


def backtrack(q: Gaussian, delta: Gaussian, **settings: float) -> Tensor:
    """The fraction (...) of `backtracked_step`, with its settings."""
    return backtracked_step(q, delta, **settings)[0]


def backtracked_step(
    q: Gaussian,
    delta: Gaussian,
    *,
    max_fraction: float = 1.0,
    min_fraction: float = MIN_FRACTION,
    margin: float = 0.05,
) -> tuple[Tensor, Gaussian]:
    """The largest fraction (...) of a change that leaves q positive definite, and q δ^fraction, whose factor is cached.

    The fraction is 0 where no step is possible.

    Args:
        q: the Gaussian that is changed.
        delta: the change, of the same structure, its batch broadcasting with that of q.
        max_fraction: the fraction if the full step is possible (the damping).
        min_fraction: the fraction is 0 if it would be below this, and below `max_fraction`.
        margin: smallest allowed eigenvalue of the new precision relative to the old one, in [0, 1).

    Raises:
        ValueError: if a setting is outside its range.
    """
    if not (min(min_fraction, max_fraction) > 0 and 0 <= margin < 1):
        raise ValueError(
            "backtrack: expected min_fraction > 0, max_fraction > 0 and margin in [0, 1), received "
            f"min_fraction={min_fraction}, max_fraction={max_fraction}, margin={margin}"
        )
    limit = largest_fraction(q, delta)
    fraction = ((1.0 - margin) * limit).clamp_max(max_fraction).to(q.eta.dtype)
    moved = move(q, delta, fraction)
    stalled = (
        fraction < min(min_fraction, max_fraction)
    ) | ~moved.is_proper()  # in the fields' own dtype, after its rounding
    return torch.where(stalled, 0.0, fraction), moved
