"""Properties of a site of a Pyro trace: kind, plates, axis of rows, location and scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import TransformedDistribution, biject_to, constraints
from torch.distributions.transforms import ComposeTransform, IndependentTransform

from pyro_fed.errors import ModelError

Message = dict[str, Any]


def unconstraining(msg: Message) -> Any:
    """The transform onto a latent site's support; ModelError for a `Delta`, or a support without one."""
    name, fn = msg["name"], msg["fn"]
    kind = type(innermost(fn)).__name__
    if isinstance(innermost(fn), dist.Delta):
        raise ModelError(
            f"latent site '{name}' is a Delta: report computed values by `pyro.deterministic('{name}', value)`"
        )
    try:
        return _transform_onto_values(fn)
    except NotImplementedError as error:
        raise ModelError(
            f"latent site '{name}' ({kind}) has the support {fn.support}, which has no transform to an unconstrained "
            "space: write it as a function of a latent that has one"
        ) from error


def _transform_onto_values(fn: Any) -> Any:
    """The transform from the unconstrained space to the values of a distribution.

    PyTorch's support of a transformed distribution is the codomain of its last transform: the real line for -1 + 2 Beta
    or 3 + Exponential, all positive numbers for the exponential of an ordered vector. Outside the image of its base the
    distribution has no density, or an invalid formula. For such a distribution the transform onto the base's support is
    composed with the distribution's own transforms.
    """
    inner = innermost(fn)
    if not isinstance(inner, TransformedDistribution) or _reaches_all(inner):
        return biject_to(_stated_support(fn))
    onto = ComposeTransform([_transform_onto_values(inner.base_dist), *inner.transforms])
    outer_dims = len(fn.event_shape) - onto.codomain.event_dim
    return IndependentTransform(onto, outer_dims) if outer_dims > 0 else onto


def _reaches_all(fn: Any) -> bool:
    """Whether the stated support of a transformed distribution, such as that of LogNormal, is the set of its values."""
    if type(fn).support is not TransformedDistribution.support or not all(part.bijective for part in fn.transforms):
        return True
    image_of_base = _stated_support(fn.base_dist)
    for transform in fn.transforms:
        if not _same_constraint(image_of_base, transform.domain):
            return False
        image_of_base = transform.codomain
    return True


def _stated_support(fn: Any) -> Any:
    """The support that a distribution states; one turn for angles."""
    return _support_of_components(fn.support, _is_angle(fn))


def _same_constraint(one: Any, other: Any) -> bool:
    """Whether two constraints of the same shape are the same; constraints with bounds are not."""
    one, other = (_bare_constraint(part) for part in (one, other))
    if one is other:
        return True
    bounds = [(getattr(part, "lower_bound", None), getattr(part, "upper_bound", None)) for part in (one, other)]
    return type(one) is type(other) and bounds[0] == bounds[1] == (None, None)


def _bare_constraint(constraint: Any) -> Any:
    """A constraint without its shape, with an open end."""
    while isinstance(constraint, constraints.independent):
        constraint = constraint.base_constraint
    return constraints.positive if constraint is constraints.nonnegative else constraint


def _is_angle(fn: Any) -> bool:
    """Whether the distribution is over angles, so that its integral over one turn is one."""
    fn = innermost(fn)
    if isinstance(fn, dist.MixtureSameFamily):
        return _is_angle(fn.component_distribution)
    return isinstance(fn, (dist.VonMises, dist.SineBivariateVonMises, dist.SineSkewed))


def _support_of_components(support: Any, one_turn: bool) -> Any:
    """A support; for a `MixtureSameFamily` that of its components, which has a transform. For angles (-π, π)."""
    if isinstance(support, constraints.MixtureSameFamilyConstraint):
        return _support_of_components(support.base_constraint, one_turn)
    if isinstance(support, constraints.independent):
        return constraints.independent(
            _support_of_components(support.base_constraint, one_turn), support.reinterpreted_batch_ndims
        )
    return constraints.interval(-math.pi, math.pi) if one_turn else support


def without_event_dims(fn: Any) -> Any:
    """The distribution inside `to_event`."""
    while isinstance(fn, dist.Independent):
        fn = fn.base_dist
    return fn


def innermost(fn: Any) -> Any:
    """The distribution inside `to_event`, `mask` and `expand`."""
    while isinstance(fn, (dist.Independent, dist.MaskedDistribution, dist.ExpandedDistribution)):
        fn = fn.base_dist
    return fn


def is_improper(fn: Any) -> bool:
    """Whether the distribution is an `ImproperUniform`, possibly masked or reshaped."""
    return isinstance(innermost(fn), dist.ImproperUniform)


def is_imputed(msg: Any, plates: Iterable[str | None]) -> bool:
    """Whether a site has the unobserved entries of a site with `obs_mask` inside one of the plates."""
    masked = isinstance(msg["mask"], Tensor)
    return msg["name"].endswith("_unobserved") and masked and plate_of(msg, plates) is not None


def is_deterministic(msg: Message) -> bool:
    """Whether a site reports a computed value (`pyro.deterministic`, or a reparameteriser's output)."""
    fn = without_event_dims(msg["fn"])
    is_masked_delta = isinstance(fn, dist.MaskedDistribution) and isinstance(fn.base_dist, dist.Delta)
    return bool(msg["infer"].get("_deterministic")) or (msg["is_observed"] and is_masked_delta)


def is_reported(msg: Message) -> bool:
    """Whether a site has a computed value: a deterministic one, or one with a density of the latents in it.

    Pyro's reparameterisers by Haar wavelets, cosines and splits make the latter: `Delta(value, log_density)`, observed
    at this value.
    """
    fn = innermost(msg["fn"])
    if is_deterministic(msg) or not msg["is_observed"] or not isinstance(fn, dist.Delta):
        return is_deterministic(msg)
    return fn.v.shape == msg["value"].shape and bool((fn.v == msg["value"]).all())


def frame_of(msg: Message, plate: str) -> Any:
    """The site's frame of the named plate; None outside the plate."""
    return next((frame for frame in msg["cond_indep_stack"] if frame.name == plate), None)


def plate_of(msg: Message, plates: Iterable[str | None]) -> str | None:
    """The first of the plates that contains the site; None if there is none."""
    return next((plate for plate in plates if plate and frame_of(msg, plate) is not None), None)


def row_axis(msg: Message, plate: str) -> int | None:
    """The axis of a site's value, constrained or not, along the named plate; None outside the plate."""
    frame = frame_of(msg, plate)
    return None if frame is None or frame.dim is None else len(msg["fn"].batch_shape) + frame.dim


def rows_first(value: Tensor, axis: int) -> Tensor:
    """A value (..., m, ...) with rows on `axis`, reshaped to (m, rest)."""
    return value.movedim(axis, 0).flatten(1) if value.dim() > 1 else value.unsqueeze(-1)


def sum_to_rows(site: Message, dim: int) -> Tensor:
    """A site's log density (m,), summed over all dimensions of its batch except `dim`, the partitioned plate."""
    log_prob = torch.broadcast_to(site["log_prob"], site["fn"].batch_shape)
    by_rows = log_prob.movedim(dim, 0)
    return by_rows if by_rows.dim() == 1 else by_rows.reshape(by_rows.shape[0], -1).sum(-1)


class LocationScale(NamedTuple):
    """A location and a scale of the values' shape; the scale may be a lower triangular matrix for each vector."""

    loc: Tensor
    scale: Tensor

    @classmethod
    def of(cls, fn: Any) -> LocationScale | None:
        """The location and scale of a distribution; None unless `loc` and `scale` or `scale_tril` determine it."""
        base = without_event_dims(fn)
        if {"loc", "scale"} <= set(base.arg_constraints):
            return cls(*torch.broadcast_tensors(torch.as_tensor(base.loc), torch.as_tensor(base.scale)))
        if {"loc", "scale_tril"} <= set(base.arg_constraints):
            shape = base.batch_shape + base.event_shape
            return cls(base.loc.expand(shape), base.scale_tril.expand(shape + base.event_shape))
        return None

    @property
    def is_matrix(self) -> bool:
        """Whether the scale is a matrix for each vector."""
        return self.scale.dim() > self.loc.dim()

    @property
    def log_size(self) -> Tensor:
        """log |dx/de| by entries, of the values' shape."""
        scales = self.scale.diagonal(dim1=-2, dim2=-1) if self.is_matrix else self.scale
        return scales.log()

    def from_standard(self, e: Tensor) -> Tensor:
        """The value x of a standard value e."""
        return self.loc + ((self.scale @ e[..., None])[..., 0] if self.is_matrix else self.scale * e)

    def standard(self, x: Tensor) -> Tensor:
        """The standard value e of x."""
        deviation = x - self.loc
        if not self.is_matrix:
            return deviation / self.scale
        e: Tensor = torch.linalg.solve_triangular(self.scale, deviation[..., None], upper=False)[..., 0]
        return e
