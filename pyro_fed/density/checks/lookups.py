"""Which dimension of a latent is looked up by an argument of codes, as in `level[hospital]`.

A row with code k then depends on element k of that dimension alone, and a category k on element k alone, up to what
all categories have in common. Both are seen in derivatives of one run; how the model writes it is of no matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.dependence import run_at_random
from pyro_fed.density.running.trace_sites import Message, is_deterministic, sum_to_rows, without_event_dims

#: A derivative in float64 that is this part of the largest is rounding: what normalising categories leaves.
ROUNDING = 1e-9


class Lookups:
    """The model's latents, and what of them is looked up by which codes.

    Args:
        bound: the model and its arguments.
    """

    def __init__(self, bound: BoundModel) -> None:
        self.execution, _ = run_at_random(bound.doubled(), torch.Generator().manual_seed(0))
        self.sites: dict[str, Message] = {
            name: site for name, site in self.execution.trace.nodes.items() if site["type"] == "sample"
        }

    def axes(self, codes: Tensor, size: int) -> Iterator[tuple[str, int]]:
        """Latents with an axis whose elements the codes number, each with that axis.

        Args:
            codes: (n,) whole numbers from 0.
            size: how many elements there are.
        """
        for name, site in self.sites.items():
            value = site["value"]
            if site["is_observed"] or not isinstance(value, Tensor) or not value.requires_grad:
                continue
            for axis in (axis for axis, length in enumerate(value.shape) if length == size):
                if self._by_rows(value, axis, codes, size) or self._by_categories(value, axis, codes, size):
                    yield name, axis

    def _by_rows(self, value: Tensor, axis: int, codes: Tensor, size: int) -> bool:
        """Whether rows with code k depend on element k of this axis alone: rows together by each bit of their codes."""
        number = torch.arange(size)
        for terms in self._terms(value, len(codes)):
            found = []
            for bit in range(max(1, (size - 1).bit_length())):
                for side in (0, 1):
                    rows = (codes >> bit & 1) == side
                    with torch.enable_grad():
                        total = terms[rows].sum()
                    slope = _slope(total, value, axis)
                    found.append((slope, (number >> bit & 1) == side))
            if any(bool(slope.any()) for slope, _ in found):
                return all(bool((slope[~own] == 0).all()) for slope, own in found)
        return False

    def _terms(self, value: Tensor, count: int) -> Iterator[Tensor]:
        """Log densities (n,) of the sites with so many rows."""
        for site in self.sites.values():
            if site["value"] is value or is_deterministic(site):
                continue
            for frame in site["cond_indep_stack"]:
                if frame.dim is not None and frame.size == count:
                    with torch.enable_grad():
                        terms = sum_to_rows(site, frame.dim)
                    yield terms

    def _by_categories(self, value: Tensor, axis: int, codes: Tensor, size: int) -> bool:
        """Whether the codes are observed categories, and odds among all but k do not depend on element k."""
        for site in self.sites.values():
            fn: Any = without_event_dims(site["fn"])
            if not (site["is_observed"] and isinstance(fn, Categorical) and fn.logits.shape[-1] == size > 2):
                continue
            observed = site["value"]
            if observed.shape != codes.shape or not torch.equal(observed.to(codes.dtype), codes):
                continue
            generator = torch.Generator().manual_seed(0)
            with torch.enable_grad():
                slopes = []
                for category in range(size):
                    weight = torch.rand(size, generator=generator, dtype=torch.float64)
                    weight[category] = 0.0
                    weight -= weight.sum() / (size - 1)  # odds: what all have in common drops out
                    weight[category] = 0.0
                    slopes.append(_slope((fn.logits * weight).sum(), value, axis))
            table = torch.stack(slopes)
            largest = table.max()
            return bool(largest > 0) and bool((table.diagonal() <= ROUNDING * largest).all())
        return False


def _slope(total: Tensor, value: Tensor, axis: int) -> Tensor:
    """Absolute derivatives of a number, summed over all axes but one; NaN is a dependence."""
    if not total.requires_grad:
        return torch.zeros(value.shape[axis])
    (found,) = torch.autograd.grad(total, value, allow_unused=True, retain_graph=True)
    if found is None:
        return torch.zeros(value.shape[axis])
    return found.nan_to_num(torch.inf).abs().movedim(axis, 0).reshape(value.shape[axis], -1).sum(1)
