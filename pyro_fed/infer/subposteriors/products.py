"""Draws of a product of densities from draws of its factors.

    p(θ) ∝ Π_k p_k(θ),      θ_k,s ~ p_k,    s = 1 ... S,    V_k the covariance of the draws of p_k

`average_draws`  Scott et al. (2016), Section 3:  θ_s = (Σ_k W_k)⁻¹ Σ_k W_k θ_k,s,  W_k = V_k⁻¹ (or I): draws of p where
                 all p_k are Gaussian
`gaussian`       Neiswanger et al. (2014), Section 3.1: draws of Π_k N(mean_k, V_k)
`nonparametric`  the same, Algorithm 1: draws of Π_k KDE_k. With kernels N(· | θ_k, h² V_k) it is a mixture of S^K
                 Gaussians, whose components t = (t_1 ... t_K) are walked by Metropolis steps of one t_k at a time:

                     weight(t) ∝ exp(-Σ_k (θ_k,t_k - θ̄_t)' W_k (θ_k,t_k - θ̄_t) / 2h²),      θ̄_t as in `average_draws`,
                     θ | t ~ N(θ̄_t, h² (Σ_k W_k)⁻¹)

                 at pass i h = i^(-1/(4 + D)), as published. The paper's kernels are N(· | θ_k, h² I): with V_k nothing
                 depends on units, and where all p_k are Gaussian the mean is exact and the covariance 1 + h² times it.

All θ_k are one array (K, S, D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import FullGaussian, Gaussian

#: Added to the diagonal of the draws' correlations, so that fewer draws than parameters cause no error.
CORRELATION_JITTER = 1e-12


def average_draws(draws: Tensor, *, weighted: bool = True) -> Tensor:
    """One draw of the product for each s, (S, D), from draws (K, S, D); unweighted, all weights are equal."""
    if not weighted:
        return draws.mean(0)
    precisions = _precisions(draws)
    found: Tensor = torch.linalg.solve(precisions.sum(0), torch.einsum("kde,kse->ds", precisions, draws)).T
    return found


def gaussian(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the product of Gaussians with the moments of the draws (K, S, D)."""
    mean, factor = _product(draws)
    return mean + torch.randn(draws.shape[1:], generator=generator, dtype=draws.dtype) @ factor.T


def nonparametric(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the product of density estimates of the draws (K, S, D): a Markov chain of passes over k."""
    number, count, dim = draws.shape
    precisions = _precisions(draws)
    together = torch.linalg.inv(precisions.sum(0))
    factor = torch.linalg.cholesky((together + together.T) / 2)
    pulls = torch.einsum("kde,kse->ksd", precisions, draws)  # W_k θ_k,s
    sizes = (pulls * draws).sum(-1)  # θ' W θ

    def spread(chosen: Tensor) -> tuple[float, Tensor]:
        """Σ_k (θ_k - θ̄)' W_k (θ_k - θ̄), and θ̄ (D,), of one draw each (K,)."""
        pull = pulls[clients, chosen].sum(0)
        middle = together @ pull
        return float(sizes[clients, chosen].sum() - pull @ middle), middle

    clients = torch.arange(number)
    chosen = torch.randint(count, (number,), generator=generator)
    value, middle = spread(chosen)
    found = []
    for i in range(1, count + 1):
        width = float(i) ** (-1 / (4 + dim))
        proposals = torch.randint(count, (number,), generator=generator)
        chances = torch.rand(number, generator=generator).log().tolist()
        for k, chance in enumerate(chances):
            trial = chosen.clone()
            trial[k] = proposals[k]
            # A Metropolis step between components: log weight(new) - log weight(old).
            trial_value, trial_middle = spread(trial)
            if (value - trial_value) / (2 * width**2) > chance:
                chosen, value, middle = trial, trial_value, trial_middle
        noise = torch.randn(dim, generator=generator, dtype=draws.dtype)
        found.append(middle + width * factor @ noise)
    return torch.stack(found)


def moments(draws: Tensor) -> FullGaussian:
    """Gaussians (K,) with the means and covariances of draws (K, S, D)."""
    precision = _precisions(draws)
    return FullGaussian(precision, torch.einsum("kde,ke->kd", precision, draws.mean(1)))


def stretch_draws(draws: Tensor, before: FullGaussian, after: Gaussian) -> Tensor:
    """Draws (K, ..., D) of one Gaussian each, (K,), shifted and scaled to those of another."""
    shape = (len(draws), *[1] * (draws.dim() - 2), -1)
    away = draws - before.mean().reshape(shape)
    white = torch.einsum("kde,k...e->k...d", torch.linalg.inv(before.root()), away)
    return after.mean().reshape(shape) + torch.einsum("kde,k...e->k...d", after.root(), white)


def _product(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (D,), and a Cholesky factor of the covariance (D, D), of the product of Gaussians."""
    precisions = _precisions(draws)
    covariance: Tensor = torch.linalg.inv(precisions.sum(0))
    mean = covariance @ torch.einsum("kde,ke->d", precisions, draws.mean(1))
    return mean, torch.linalg.cholesky((covariance + covariance.T) / 2)


def _precisions(draws: Tensor) -> Tensor:
    """Inverse covariances (K, D, D)."""
    away = draws - draws.mean(1, keepdim=True)
    covariance = away.mT @ away / (draws.shape[1] - 1)
    sd = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = covariance / sd[:, :, None] / sd[:, None, :]
    least = CORRELATION_JITTER * torch.eye(draws.shape[2], dtype=draws.dtype)
    found: Tensor = torch.linalg.inv(correlation + least) / sd[:, :, None] / sd[:, None, :]
    return found
