"""Observed values as distributions take them: counts and labels in floating point, no masked missing values.

Torch computes few densities of whole numbers or truth values, though these are what labels and counts are kept in. And
a missing value whose density is masked has a derivative that is not: NaN times zero is NaN. Where the mask leaves a
value out it becomes one inside the support, which changes no density.
"""

from __future__ import annotations

from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyro_fed.density.rows.labelled import Labelled, Labels, plain
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic

#: Distributions that take whole numbers as places in a table, or compare values exactly.
PLACES = (dist.Categorical, dist.OneHotCategorical, dist.SpanningTree, dist.Empirical, dist.Delta, dist.Unit)


class ObservedValues(Messenger):
    """Pass observed values, with NaN among them if `incomplete`, to distributions in a form that these take."""

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
    """The codes of text or categories for a distribution of categories; of two or of ranks where they are ordered.

    Args:
        column: what is observed.
        msg: of the site.
    """
    fn, labels = innermost(msg["fn"]), column.labels
    if isinstance(fn, dist.Bernoulli | dist.OrderedLogistic):
        if not labels.ordered and labels != Labels(range(len(labels))):
            column.refuse(
                f"observes it at site '{msg['name']}' ({type(fn).__name__}), though its labels have no order: say it, "
                f"pandas.Categorical({column.argument}, categories=[...], ordered=True), or"
            )
    elif not isinstance(fn, dist.Categorical | dist.OneHotCategorical):
        column.refuse(f"observes it at site '{msg['name']}' ({type(fn).__name__}), which takes numbers:")
    return cast(Tensor, plain(column))


def mask_of(msg: Message) -> Tensor | None:
    """A site's mask, from handlers and from `.mask()`, of the shape of its batch and ones for its event."""
    masks: list[tuple[Tensor, int]] = []  # each with the dimensions of its event that it has already

    def add(mask: Any, fn: Any, inside: int) -> None:
        if mask is False:
            mask = torch.zeros(fn.batch_shape, dtype=torch.bool)
        if isinstance(mask, Tensor):
            masks.append((mask, inside))

    add(msg["mask"], msg["fn"], 0)
    fn, right = msg["fn"], 0
    while isinstance(fn, dist.Independent | dist.MaskedDistribution | dist.ExpandedDistribution):
        if isinstance(fn, dist.Independent):
            right += fn.reinterpreted_batch_ndims
        elif isinstance(fn, dist.MaskedDistribution):
            add(fn._mask, fn, right)
        fn = fn.base_dist
    if not masks:
        return None
    event = len(msg["fn"].event_shape)
    known: Tensor | None = None
    for mask, inside in masks:
        mask = mask.reshape(mask.shape + (1,) * (event - inside))
        known = mask if known is None else known & mask
    return known


def _fill_missing(value: Tensor, known: Tensor, fn: Any) -> Tensor:
    """The value with something inside the support where it is NaN and unknown."""
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
