"""Distributions that are a standard one, shifted and stretched: x = loc + scale e, scale a number or a matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.running.trace_sites import without_event_dims


class LocationScale(NamedTuple):
    """A shift and a scale, of the values' shape; the scale may be lower triangular matrices, one for each vector."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def of(cls, fn: Any) -> LocationScale | None:
        """The shift and scale of a site's distribution; None unless `loc` and `scale` or `scale_tril` determine it."""
        base = without_event_dims(fn)
        if {"loc", "scale"} <= set(base.arg_constraints):
            return cls(*torch.broadcast_tensors(torch.as_tensor(base.loc), torch.as_tensor(base.scale)))
        if {"loc", "scale_tril"} <= set(base.arg_constraints):
            shape = base.batch_shape + base.event_shape
            return cls(base.loc.expand(shape), base.scale_tril.expand(shape + base.event_shape))
        return None

    @property
    def is_matrix(self) -> bool:
        """Whether scale has a matrix for each vector."""
        return self.scale.dim() > self.loc.dim()

    @property
    def log_size(self) -> Tensor:
        """log |dx/de|, entry by entry, of the values' shape."""
        own = self.scale.diagonal(dim1=-2, dim2=-1) if self.is_matrix else self.scale
        return own.log()

    def from_standard(self, e: Tensor) -> Tensor:
        """The value x of a standard value e."""
        return self.loc + ((self.scale @ e[..., None])[..., 0] if self.is_matrix else self.scale * e)

    def standard(self, x: Tensor) -> Tensor:
        """The standard value e of x."""
        away = x - self.loc
        if not self.is_matrix:
            return away / self.scale
        e: Tensor = torch.linalg.solve_triangular(self.scale, away[..., None], upper=False)[..., 0]
        return e
