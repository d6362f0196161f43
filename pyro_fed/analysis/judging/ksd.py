"""The kernelised Stein discrepancy of a result, computed over the federation: clients send scores, not data.

    S = 1/M² Σ_ij u(θ_i, θ_j),   u of the posterior's score ∇ log p_0 + Σ_k ∇ log p_k        (Liu, Lee &
    Jordan, 2016)

on the unconstrained scale, in coordinates that whiten the draws, so that parameters of any unit count alike.
With the inverse multiquadric kernel a small S means that draws and posterior are close (Gorham & Mackey,
2017).

Reference: for M independent draws of the posterior itself the V-statistic is about E u(θ, θ) / M, and the
    U-statistic about zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.scores import likelihood_scores, prior_scores
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.kernel_base import Kernel, Preconditioned
from pyro_fed.ops.kernels import IMQ
from pyro_fed.ops.stein import ksd as stein_discrepancy
from pyro_fed.results.to_arviz import unconstrained_draws


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


def _factor(points: Tensor) -> Tensor:
    """A with A A' the covariance of the draws (M, D), or its diagonal where the draws are too few."""
    offsets = points - points.mean(0)
    covariance = offsets.T @ offsets / len(points)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    scale = covariance.diagonal().sqrt()
    return scale.clamp_min(torch.finfo(scale.dtype).tiny) if bool(failed) else factor
