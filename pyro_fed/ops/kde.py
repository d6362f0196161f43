"""Scores of Gaussian kernel density estimates, and of the ratios of them that are DSVGD's sites, in log space.

Source: Kassab & Simeone, *Federated generalized Bayesian learning via distributed Stein variational
gradient descent*, Section 7 (Gaussian kernel, bandwidth 0.55), Eq. (10), (14)-(15) and Appendix A.2.

    q(theta) = 1/N Σ_n N(theta | theta_n, lambda² I)                                        (Algorithm 1)
    ∇ log q(theta) = Σ_n w_n (theta_n - theta) / lambda²,   w = softmax_n(-||theta - theta_n||² / 2 lambda²)
    ∇ log t(theta) = Σ_j [∇ log q_j(theta) - ∇ log q_{j-1}(theta)]                                   (10), (15)

Letters: theta ``x`` (M, D), theta_n ``centres`` (N, D), lambda ``bandwidth`` (a standard deviation), w
``kde_weights``, j the rounds in a client's buffer.

The authors' code adds 1e-9 to every kernel value (``floor``) and 1e-50 to their sum, so that q has an infinite flat
tail and a score of zero away from its centres. Without a floor log-sum-exp stays finite in any dimension, and away
from the centres the score points to the nearest one, as Eq. (14) says. How much of a mixture is left in it is for
``effective_neighbours`` to tell.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.ops.kernel_base import squared_distances, weighted_differences


def _log_kernels(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    if isinstance(bandwidth, float | int) and bandwidth <= 0:
        raise ValueError(f"kde: expected bandwidth > 0 (a standard deviation), received {bandwidth}")
    return -0.5 * squared_distances(x, centres) / bandwidth**2


def kde_weights(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Responsibility of each centre for each point: (M, D), (..., N, D) -> (..., M, N), rows summing to 1."""
    log_kernels = _log_kernels(x, centres, bandwidth)
    # Not a softmax: its maximum and sum would be taken once more than those of `kde_share`.
    return (log_kernels - log_kernels.logsumexp(-1, keepdim=True)).exp()


def kde_score(x: Tensor, centres: Tensor, bandwidth: float | Tensor, floor: float = 0.0) -> Tensor:
    """Gradient (..., M, D) with respect to ``x`` of log(``floor`` + mean_n exp(-||x - theta_n||² / 2 lambda²)).

    ``floor`` is the constant under the density, in units of a kernel's peak; 0 is the KDE itself.

    Raises:
        ValueError: if the bandwidth is not positive, or the floor negative.
    """
    weights = kde_weights(x, centres, bandwidth)
    if floor:
        weights = weights * kde_share(x, centres, bandwidth, floor).unsqueeze(-1)
    return weighted_differences(weights, x, centres) / bandwidth**2


def kde_share(x: Tensor, centres: Tensor, bandwidth: float | Tensor, floor: float) -> Tensor:
    """The share (..., M) that the floor leaves of the KDE score, KDE / (KDE + floor), between 0 (dead) and 1."""
    if floor < 0:
        raise ValueError(f"kde: expected floor >= 0, received {floor}")
    log_sum = _log_kernels(x, centres, bandwidth).logsumexp(-1, keepdim=True).squeeze(-1)
    log_mean = log_sum - math.log(centres.shape[-2])
    return torch.ones_like(log_mean) if floor == 0 else torch.sigmoid(log_mean - math.log(floor))


def effective_neighbours(x: Tensor, centres: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Number of centres (..., M) that make up the score at each point, 1 / Σ_n w_n²; near 1 it is the nearest."""
    return 1.0 / kde_weights(x, centres, bandwidth).square().sum(-1)


def buffer_score_ratio(
    x: Tensor, after: Tensor, before: Tensor, mask: Tensor, bandwidth: float | Tensor, floor: float = 0.0
) -> Tensor:
    """Score (M, D) of U-DSVGD's site at x, Eq. (15): Σ_j [∇ log q_j(x) - ∇ log q_{j-1}(x)] over a client's buffer.

    `after` and `before` (J, N, D) are the particles that it sent and had received, one slot a turn; `mask` (J,) says
    which are in use.
    """
    difference = kde_score(x, after, bandwidth, floor) - kde_score(x, before, bandwidth, floor)
    # Chosen, not multiplied: an unused slot may hold anything, NaN included.
    return torch.where(mask[:, None, None], difference, 0.0).sum(0)


def kde_draws(centres: Tensor, num_draws: int, bandwidth: float, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the density itself, stratified: every centre has as many as the others, to within one."""
    count = len(centres)
    extra = torch.randperm(count, generator=generator)[: num_draws % count]
    chosen = torch.cat([torch.arange(count).repeat(num_draws // count), extra])
    noise = torch.randn(num_draws, centres.shape[1], generator=generator, dtype=torch.float64)
    return centres[chosen.to(centres.device)] + bandwidth * noise.to(centres)
