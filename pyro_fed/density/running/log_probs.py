"""Log densities, and a logarithm, that stand in place of Pyro's own while a model runs.

`NanMaskedNormal` and `NanMaskedMultivariateNormal` leave out what is NaN or infinite by indexing, of which `vmap` has
no rule. Here a missing entry has the value of its mean and, among several, a variance of one and no covariance, which
adds nothing to the other entries' density.

Pyro's `safe_log`, which its hidden Markov models use, is a function of autograd that `torch.func` cannot take. Here it
is the logarithm with its derivative 1 / max(x, eps), of any order and under `vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro.distributions as dist
import torch
from pyro.ops import special
from torch import Tensor

from pyro_fed.density.running.large_shapes import ACCURATE, LogProb

HALF_LOG_2PI = math.log(2 * math.pi) / 2


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


@contextmanager
def own_log_probs() -> Iterator[None]:
    """A context in which those distributions have densities that torch can map, and whose digits do not cancel."""
    standing = MAPPABLE | ACCURATE
    originals = {kind: kind.log_prob for kind in standing}
    for kind, log_prob in standing.items():
        kind.log_prob = log_prob
    try:
        yield
    finally:
        for kind, original in originals.items():
            kind.log_prob = original


class SafeLog:
    """Replacement of `pyro.ops.special._SafeLog`."""

    @staticmethod
    def apply(x: Tensor) -> Tensor:
        """The logarithm of non-negative values, with a finite derivative at zero."""
        eps = torch.finfo(x.dtype).eps
        large = x > eps
        below = x.detach().log() + (x - x.detach()) / eps
        return torch.where(large, torch.where(large, x, 1.0).log(), below)


@contextmanager
def mappable_safe_log() -> Iterator[None]:
    """A context that uses it while a model runs."""
    patched: Any = special
    original = patched._SafeLog
    patched._SafeLog = SafeLog
    try:
        yield
    finally:
        patched._SafeLog = original
