"""The kernelised Stein discrepancy between draws and the posterior. Clients send scores, not data.

    S = 1/M² Σ_ij u(θ_i, θ_j)                                                 (V-statistic)
    S = 1/(M (M-1)) Σ_{i≠j} u(θ_i, θ_j)                                       (U-statistic)

Here θ_1 … θ_M are the draws on the unconstrained scale, in coordinates that whiten them, so that the parameters' units
do not matter. u is the Stein kernel of the posterior's score ∇ log p_0 + Σ_k ∇ log p_k. With the inverse multiquadric
kernel a small S means that draws and posterior are close.

**When a discrepancy speaks against the draws** (`discrepancy`). It must exceed both of two limits: chance, and what a
usable approximation may have.

- Chance, for random draws. For independent draws of the posterior, the U-statistic is distributed around zero like
  Σ_{i≠j} w_i w_j u_ij / (M (M-1)) with random signs w. Draws of a chain that depend on each other share a sign.
- Chance, for particles. They are not random. As quadrature points they should do at least as well as M independent
  draws of a Gaussian, whose V-statistic has the mean E u(θ, θ) / M = (k(θ, θ) D + tr ∇∇'k(θ, θ)) / M. This is added to
  the second limit.
- A usable approximation. Every approximation q differs from the posterior p, and many draws show it. By Stein's
  identity S = E (∇ log p - ∇ log q)(θ)' k(θ, θ') (∇ log p - ∇ log q)(θ'). For a whitened Gaussian whose mean is off
  by δ this is |δ|² E k(θ, θ'). The limit is its value for a δ of `MATTERS` SDs in one coordinate and `NEGLIGIBLE` SDs
  in all others.

Sources: Liu, Lee & Jordan (2016), A kernelized Stein discrepancy for goodness-of-fit tests; Gorham & Mackey (2017),
Measuring sample quality with kernels; Chwialkowski, Strathmann & Gretton (2016), A kernel test of goodness of fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.conventions.calls import checked, explained
from pyro_fed.conventions.limits import FALSE_ALARM_CHANCE, MATTERS, NEGLIGIBLE
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.derivatives.scores import likelihood_scores, prior_scores
from pyro_fed.density.rows.batches import Batch
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.kernel_base import Kernel, Preconditioned
from pyro_fed.ops.kernels import IMQ
from pyro_fed.ops.stein import ksd as stein_discrepancy
from pyro_fed.results.to_arviz import unconstrained_draws

#: Sets of random signs that give the distribution of the discrepancy by chance.
RANDOM_SIGNS = 399
#: Share of results with draws of the posterior itself for which the discrepancy, or the prior's count, exceeds chance.
DENSITY_FALSE_ALARM_CHANCE = FALSE_ALARM_CHANCE / 2


class Discrepancy(NamedTuple):
    """The discrepancy between draws and the posterior, with its limit.

    Args:
        value: S, the U-statistic for random draws, the V-statistic for particles.
        limit: the largest value that does not speak against the draws.
        farthest: number of the coordinate of the flat vector whose mean score, times its SD, is largest.
    """

    value: float
    limit: float
    farthest: int

    @property
    def is_wrong(self) -> bool:
        """Whether the discrepancy speaks against the draws."""
        return self.value > self.limit


def discrepancy(points: Tensor, scores: Tensor, blocks: np.ndarray | None) -> Discrepancy:
    """The squared discrepancy between draws and posterior, and its limit, see the module's header.

    Args:
        points: (M, D), the draws on the unconstrained scale; they vary in every coordinate.
        scores: (M, D), the posterior's score at each draw.
        blocks: (M,), the block's number of each draw, from `pyro_fed.analysis.judging.draws.blocks`; None for
            particles.

    Example:
        >>> discrepancy(points, scores, np.arange(len(points))).is_wrong
    """
    z, s = whiten_draws(points, scores)
    kernel, (count, dim) = IMQ(), z.shape
    matrix = kernel.stein_matrix(z, s, s)
    similar = kernel.gram(z, z)
    alike = float((similar.sum() - similar.diagonal().sum()) / (count * (count - 1)))
    tolerated = (MATTERS**2 + (dim - 1) * NEGLIGIBLE**2) * alike
    farthest = int((points.double().std(0) * scores.double().mean(0)).abs().argmax())
    if blocks is None:
        origin = z[:1]
        chance = float(kernel.gram(origin, origin) * dim + kernel.trace(origin, origin)) / count
        return Discrepancy(float(matrix.mean()), tolerated + chance, farthest)
    apart = matrix - torch.diag(matrix.diagonal())
    names, index = np.unique(blocks, return_inverse=True)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (RANDOM_SIGNS, len(names)))
    w = torch.from_numpy(signs)[:, torch.from_numpy(index.reshape(-1))]
    by_chance = ((w @ apart) * w).sum(1) / (count * (count - 1))
    limit = max(tolerated, float(by_chance.quantile(1 - DENSITY_FALSE_ALARM_CHANCE)))
    return Discrepancy(float(apart.sum()) / (count * (count - 1)), limit, farthest)


@checked
@explained(DataError, "ksd: the result does not fit the model")
def ksd(
    idata: Mapping[str, xr.Dataset],
    federation: Federation,
    *,
    kernel: Kernel | None = None,
    num_draws: int = 500,
    statistic: str = "V",
    seed: int = 0,
) -> float:
    """Squared kernelised Stein discrepancy between a result and the federation's posterior.

    Args:
        idata: a result of `pyro_fed.run` on the same model, or any InferenceData with its sites.
        federation: the model and its clients.
        kernel: kernel in the coordinates that whiten the draws; the inverse multiquadric by default.
        num_draws: largest number of draws to use; if the result has more, they are chosen at random.
        statistic: "V" (never negative) or "U" (unbiased).
        seed: seed of the choice of draws.

    Returns:
        S; near zero if the draws are draws of the posterior.

    Raises:
        DataError: the result lacks a site of the model, or has fewer than 2 draws.
        SettingError: `num_draws` below 2, or an unknown statistic.

    Example:
        >>> pf.metrics.ksd(pf.run(pf.FedEP(), fed), fed)
    """
    if num_draws < 2:
        raise SettingError(f"ksd: num_draws must be at least 2, received {num_draws}")
    if statistic not in ("U", "V"):
        raise SettingError(f"ksd: statistic must be 'U' or 'V', received {statistic!r}")
    problem = federation.problem
    missing = [name for name in problem.sites if name not in idata["posterior"]]
    if missing:
        raise DataError(f"ksd: the result has no sites {missing}; the model has {list(problem.sites)}")
    with threads(1), torch.no_grad():
        draws = unconstrained_draws(idata, problem)
        if len(draws) < 2:
            raise DataError(f"ksd: expected at least 2 draws, received {len(draws)}")
        chosen = np.random.default_rng(seed).permutation(len(draws))[:num_draws]
        points = draws[torch.from_numpy(np.sort(chosen))]
        scores = prior_scores(problem, points) + federated_scores(federation, points)
        white = Preconditioned(kernel or IMQ(), _factor(points.double()))
        return float(stein_discrepancy(points.double(), scores.double(), white, statistic))


def federated_scores(federation: Federation, points: Tensor) -> Tensor:
    """Sum of the clients' likelihood scores (M, D) at unconstrained points (M, D), each from the client's own rows."""
    data = federation.client_data()
    total = torch.zeros_like(points)
    for index, count in zip(data.row_index, data.num_rows, strict=True):
        if count:
            rows = tuple(leaf[index[:count]] for leaf in data.rows)
            total += likelihood_scores(federation.problem, points, Batch(rows, points.new_ones(int(count))))
    return total


def whiten_draws(points: Tensor, *scores: Tensor) -> tuple[Tensor, ...]:
    """Draws (M, D) and scores there in coordinates in which the draws have mean zero and covariance one."""
    points = points.double()
    offsets, factor = points - points.mean(0), _factor(points)
    if factor.ndim == 1:
        return offsets / factor, *(score.double() * factor for score in scores)
    z = torch.linalg.solve_triangular(factor, offsets.T, upper=False).T
    return z, *(score.double() @ factor for score in scores)


def _factor(points: Tensor) -> Tensor:
    """A with A A' the covariance of the draws (M, D), or its diagonal if the draws are too few."""
    offsets = points - points.mean(0)
    covariance = offsets.T @ offsets / len(points)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    scale = covariance.diagonal().sqrt()
    return scale.clamp_min(torch.finfo(scale.dtype).tiny) if bool(failed) else factor
