"""Conversion of observed values for distributions, masks, and walls beyond the constraints of parameters.

Labels and counts are often integers or booleans, for which torch computes few densities: they are converted to floats.
A missing value whose density is masked has a NaN derivative, since NaN times zero is NaN. A value inside the support
replaces it, which does not change the density.

Torch does not check parameters when it computes densities: a Beta with negative concentrations has a finite density.
Pyro and Stan refuse such a point. If draws of the priors show that a site's parameters leave their constraints
(`edges.find_walls`), the log density of this site is -inf there. Other sites have no cost. A `pyro.factor` has one
parameter, its log density, with the constraint that it is not NaN, such as by the logarithm of a negative number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from inspect import getattr_static
from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyro_fed.density.rows.labelled import Labelled, Labels, plain
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic

#: Distributions that use integers as indices, or compare values exactly.
PLACES = (dist.Categorical, dist.OneHotCategorical, dist.SpanningTree, dist.Empirical, dist.Delta, dist.Unit)


class ObservedValues(Messenger):
    """Convert observed values, which may contain NaN if `incomplete`, to the form that distributions require."""

    def __init__(self, incomplete: bool) -> None:
        super().__init__()
        self.incomplete = incomplete
        self.filled = False

    def _pyro_sample(self, msg: Message) -> None:
        if not msg["is_observed"] or not isinstance(msg["value"], Tensor):
            return
        if isinstance(msg["value"], Labelled):
            msg["value"] = _codes_as_outcome(msg["value"], msg)
        if is_deterministic(msg):
            return
        value, fn = msg["value"], innermost(msg["fn"])
        if not value.is_floating_point() and not value.is_complex() and not isinstance(fn, PLACES):
            msg["value"] = value = value.to(torch.get_default_dtype())
        if self.incomplete and value.is_floating_point():
            mask = mask_of(msg)
            if mask is not None:
                msg["value"] = _fill_missing(value, mask, msg["fn"])
                self.filled = True


def _codes_as_outcome(column: Labelled, msg: Message) -> Tensor:
    """The codes of text or categories for a categorical distribution; a binary or ordinal one needs ordered labels."""
    fn, labels = innermost(msg["fn"]), column.labels
    if isinstance(fn, dist.Bernoulli | dist.OrderedLogistic):
        if not labels.ordered and labels != Labels(range(len(labels))):
            column.refuse(
                f"observes it at site '{msg['name']}' ({type(fn).__name__}), but its labels have no order: give one, "
                f"pandas.Categorical({column.argument}, categories=[...], ordered=True), or"
            )
    elif not isinstance(fn, dist.Categorical | dist.OneHotCategorical):
        column.refuse(f"observes it at site '{msg['name']}' ({type(fn).__name__}), which takes numbers:")
    return cast(Tensor, plain(column))


def mask_of(msg: Message) -> Tensor | None:
    """A site's mask, from handlers and `.mask()`, with the batch shape and axes of length one for the event."""
    masks: list[tuple[Tensor, int]] = []  # with the number of event dimensions of each mask

    def add(mask: Any, fn: Any, inside: int) -> None:
        if mask is False:
            mask = torch.zeros(fn.batch_shape, dtype=torch.bool)
        if isinstance(mask, Tensor):
            masks.append((mask, inside))

    add(msg["mask"], msg["fn"], 0)
    fn, outer_event_dims = msg["fn"], 0
    while isinstance(fn, dist.Independent | dist.MaskedDistribution | dist.ExpandedDistribution):
        if isinstance(fn, dist.Independent):
            outer_event_dims += fn.reinterpreted_batch_ndims
        elif isinstance(fn, dist.MaskedDistribution):
            add(fn._mask, fn, outer_event_dims)
        fn = fn.base_dist
    if not masks:
        return None
    event_dims = len(msg["fn"].event_shape)
    known: Tensor | None = None
    for mask, inside in masks:
        mask = mask.reshape(mask.shape + (1,) * (event_dims - inside))
        known = mask if known is None else known & mask
    return known


def _fill_missing(value: Tensor, known: Tensor, fn: Any) -> Tensor:
    """The value with a number inside the support in place of each NaN that is not `known`."""
    missing = value.isnan() & ~known.bool()
    return torch.where(missing, _value_in_support(fn.support, value), value)


def _value_in_support(support: Any, value: Tensor) -> Tensor:
    zeros = torch.zeros_like(value)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support.is_discrete:
        return zeros + getattr(support, "lower_bound", 0)
    inside: Tensor = biject_to(support)(zeros if support.event_dim == 0 else torch.zeros_like(value))
    return inside.to(value.dtype) if inside.shape == value.shape else zeros


#: Constraints without a wall: every number satisfies them, or torch computes no density beyond them.
WITHOUT_WALL = (
    constraints.real,
    constraints.real_vector,
    constraints.positive_definite,
    constraints.positive_semidefinite,
)


def constrained_parameters(fn: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """Names, constraints and values of a distribution's given parameters, except for those in `WITHOUT_WALL`."""
    fn = innermost(fn)
    if isinstance(fn, dist.Unit):
        yield "log_factor", constraints.real, fn.log_factor
        return
    for name, constraint in getattr(fn, "arg_constraints", {}).items():
        if constraint in WITHOUT_WALL or constraints.is_dependent(constraint):
            continue
        is_property = isinstance(
            getattr_static(fn, name, None), property
        )  # as in a Beta, unlike torch's lazy properties
        value = getattr(fn, name) if is_property else vars(fn).get(name)
        if isinstance(value, Tensor):
            yield name, constraint, value


class Computed(Messenger):
    """Records the sites with constrained parameters that depend on differentiated values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def _pyro_post_sample(self, msg: Message) -> None:
        if not is_deterministic(msg) and any(value.requires_grad for *_, value in constrained_parameters(msg["fn"])):
            self.names.add(msg["name"])


def put_walls(trace: Any, names: Collection[str]) -> None:
    """Set the densities of named sites to zero beyond their parameters' constraints, in a trace with densities."""
    for name in names:
        site = trace.nodes.get(name, {})
        if "log_prob" in site:
            site["log_prob"] = torch.where(within_constraints(site), site["log_prob"], -torch.inf)
            site["log_prob_sum"] = site["log_prob"].sum()


def within_constraints(site: Message) -> Tensor:
    """Whether the parameters of a site satisfy their constraints, or are masked, of the shape of its density."""
    fn = site["fn"]
    shape = innermost(fn).batch_shape
    within = torch.ones((), dtype=torch.bool)
    for _, constraint, value in constrained_parameters(fn):
        within = within & constraint.check(value)
    within = within.expand(torch.broadcast_shapes(within.shape, shape))
    within = within.flatten(len(fn.batch_shape)).all(-1) if within.dim() > len(fn.batch_shape) else within
    return or_masked(within, site)


def or_masked(flags: Tensor, site: Message) -> Tensor:
    """Flags of a site's batch shape, True also for entries that are masked."""
    mask = mask_of(site)
    if mask is None:
        return flags
    masked_out = ~mask.bool()
    return flags | (masked_out.flatten(flags.dim()).any(-1) if masked_out.dim() > flags.dim() else masked_out)
