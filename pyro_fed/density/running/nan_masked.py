"""Pyro's `NanMaskedNormal` and `NanMaskedMultivariateNormal` in terms that torch can map.

Their densities leave out what is NaN or infinite by indexing, of which `vmap` has no rule. Here a missing entry has
the value of its mean and, among several, a variance of one and no covariance, which adds nothing to the other entries'
density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

HALF_LOG_2PI = math.log(2 * math.pi) / 2

LogProb = Callable[[Any, Tensor], Tensor]


def log_normal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedNormal.log_prob`: zero where the value, which broadcasts with the batch shape, is missing."""
    known = value.isfinite()
    scaled = (torch.where(known, value, normal.loc) - normal.loc) / normal.scale
    return torch.where(known, -scaled.square() / 2 - normal.scale.log() - HALF_LOG_2PI, 0.0)


def log_marginal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedMultivariateNormal.log_prob` of values (..., n): the density of each row's known entries."""
    known = value.isfinite()
    apart = torch.where(known, value, normal.loc) - normal.loc
    both = known.unsqueeze(-1) & known.unsqueeze(-2)
    covariance = torch.where(both, normal.covariance_matrix, torch.diag_embed((~known).to(apart.dtype)))
    factor = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(factor, apart.unsqueeze(-1), upper=False).squeeze(-1)
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    densities: Tensor = -scaled.square().sum(-1) / 2 - volume - known.sum(-1) * HALF_LOG_2PI
    return densities


#: Log densities in place of distributions' own.
MAPPABLE: dict[Any, LogProb] = {
    dist.NanMaskedNormal: log_normal_of_known,
    dist.NanMaskedMultivariateNormal: log_marginal_of_known,
}
