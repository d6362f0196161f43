"""Values that add up: parts of a whole, and rows of a Cholesky factor of correlations, in double precision.

Their last entry is one less the others. In float32 it is off by 6e-8, which is all there is of a part of 1e-9: who
takes the values back to the unconstrained scale, by 1 - Σ of those before, finds numbers there that were never drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions.transforms import CorrCholeskyTransform, IndependentTransform, StickBreakingTransform

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import unconstraining


def in_double(problem: Problem, draws: Tensor) -> dict[str, Tensor]:
    """The values of such latent sites of a model in less than double precision, site name → (S, *site shape).

    Args:
        problem: the model's densities.
        draws: (S, D), unconstrained.
    """
    if problem.dtype == torch.float64 or not len(draws):
        return {}
    nodes = problem.execute_at(draws[0], problem.fewest_rows).trace.nodes
    found = {}
    for name, site in problem.sites.items():
        transform: Any = unconstraining(nodes[name])
        if isinstance(_base(transform), (StickBreakingTransform, CorrCholeskyTransform)):
            part = draws[:, site.start : site.start + site.size].cpu().double()
            found[name] = transform(part.reshape(len(draws), *site.unconstrained_shape))
    return found


def _base(transform: Any) -> Any:
    return _base(transform.base_transform) if isinstance(transform, IndependentTransform) else transform
