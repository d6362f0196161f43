"""The kernelised Stein discrepancy of a result, computed over the federation: clients send scores, not data.

    S = 1/M² Σ_ij u(θ_i, θ_j),   u of the posterior's score ∇ log p_0 + Σ_k ∇ log p_k        (Liu, Lee &
    Jordan, 2016)

on the unconstrained scale, in coordinates that whiten the draws, so that parameters of any unit count alike.
With the inverse multiquadric kernel a small S means that draws and posterior are close (Gorham & Mackey,
2017).

**When it objects** (`discrepancy`). Independent draws of the posterior have a U-statistic about zero, whose
distribution is that of Σ_{i≠j} w_i w_j u_ij / (M (M-1)) with random signs w (Chwialkowski, Strathmann & Gretton
2016); the draws of a chain have signs in common where they depend on each other, so that few independent draws
object to nothing. Particles are no random draws and have no such distribution:
as a quadrature they should be better than M independent draws of a Gaussian, whose V-statistic is E u(θ, θ) / M =
(k(θ, θ) D + tr ∇∇'k(θ, θ)) / M on average. None of this is enough for an objection, as any approximation differs
from its posterior, and many draws show it. By Stein's identity

    S = E (∇ log p - ∇ log q)(θ)' k(θ, θ') (∇ log p - ∇ log q)(θ'),

of a Gaussian q whose mean is δ away |δ|² E k(θ, θ'): S has to be larger than that, for a δ of `WRONG` SDs in one
coordinate and `RIGHT` SDs in the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.judging.moments import LARGEST_MEAN_ERROR
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.scores import likelihood_scores, prior_scores
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.kernel_base import Kernel, Preconditioned
from pyro_fed.ops.kernels import IMQ
from pyro_fed.ops.stein import ksd as stein_discrepancy
from pyro_fed.results.to_arviz import unconstrained_draws

#: SDs that the mean of a wrong answer is off, in one coordinate, and that those of a right one may be.
WRONG, RIGHT = LARGEST_MEAN_ERROR, 0.1
#: Random signs for the distribution of the discrepancy of draws of the posterior, and how often it may be exceeded.
RANDOM_SIGNS = 399
FALSE_ALARMS = 0.005


class Discrepancy(NamedTuple):
    """How far draws are from the density.

    Args:
        value: S, the U-statistic of draws, the V-statistic of particles.
        limit: the largest value that does not speak against them.
        farthest: the coordinate of the flat vector whose mean score, in SDs, is largest.
    """

    value: float
    limit: float
    farthest: int

    @property
    def wrong(self) -> bool:
        """Whether it speaks against the draws."""
        return self.value > self.limit


def discrepancy(points: Tensor, scores: Tensor, blocks: np.ndarray | None) -> Discrepancy:
    """Squared discrepancy of draws and posterior, and what it may be, see the module's header.

    Args:
        points: (M, D), unconstrained, which vary in every coordinate.
        scores: (M, D), of the posterior there.
        blocks: of `pyro_fed.analysis.judging.draws.blocks`, which draws hang together; None for particles.

    Example:
        >>> discrepancy(points, scores, np.arange(len(points))).wrong
    """
    z, s = whitened(points, scores)
    kernel, (count, dim) = IMQ(), z.shape
    matrix = kernel.stein_matrix(z, s, s)
    similar = kernel.gram(z, z)
    alike = float((similar.sum() - similar.diagonal().sum()) / (count * (count - 1)))
    tolerated = (WRONG**2 + (dim - 1) * RIGHT**2) * alike
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
    limit = max(tolerated, float(by_chance.quantile(1 - FALSE_ALARMS)))
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
        kernel: in the coordinates that whiten the draws; the inverse multiquadric by default.
        num_draws: as many draws at most, chosen at random.
        statistic: "V" (never negative) or "U" (unbiased).
        seed: of that choice.

    Returns:
        S, zero where the draws are those of the posterior.

    Raises:
        DataError: the result lacks a site of the model, or has fewer than 2 draws.
        SettingError: `num_draws` below 2, or an unknown statistic.

    Example:
        >>> pf.ksd(pf.run(pf.FedEP(), fed), fed)
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
    """Sum of the clients' likelihood scores, each computed from its own rows.

    Args:
        federation: the model and its clients.
        points: (M, D), unconstrained.

    Returns:
        (M, D), gradients of the log-likelihood of all rows.
    """
    data = federation.client_data()
    total = torch.zeros_like(points)
    for index, count in zip(data.row_index, data.num_rows, strict=True):
        if count:
            rows = tuple(leaf[index[:count]] for leaf in data.rows)
            total += likelihood_scores(federation.problem, points, Batch(rows, points.new_ones(int(count))))
    return total


def whitened(points: Tensor, *scores: Tensor) -> tuple[Tensor, ...]:
    """Draws (M, D) and scores there in coordinates in which the draws have mean zero and covariance one."""
    points = points.double()
    offsets, factor = points - points.mean(0), _factor(points)
    if factor.ndim == 1:
        return offsets / factor, *(score.double() * factor for score in scores)
    z = torch.linalg.solve_triangular(factor, offsets.T, upper=False).T
    return z, *(score.double() @ factor for score in scores)


def _factor(points: Tensor) -> Tensor:
    """A with A A' the covariance of the draws (M, D), or its diagonal where the draws are too few."""
    offsets = points - points.mean(0)
    covariance = offsets.T @ offsets / len(points)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    scale = covariance.diagonal().sqrt()
    return scale.clamp_min(torch.finfo(scale.dtype).tiny) if bool(failed) else factor
