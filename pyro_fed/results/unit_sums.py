"""Values that add up to one, in double precision: simplices, and rows of a Cholesky factor of correlations.

Their last entry is one minus the others. In float32 its error is 6e-8, which is more than an entry of 1e-9. If such
values were mapped back to the unconstrained scale, which uses 1 - Σ of the entries before, the result would not be the
draw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions.transforms import CorrCholeskyTransform, IndependentTransform, StickBreakingTransform

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import unconstraining


def in_double(problem: Problem, draws: Tensor) -> dict[str, Tensor]:
    """The values of such latent sites at draws (S, D), site name → (S, *site shape); empty for a model in float64."""
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
