"""Walls: the density is zero where a distribution's parameters leave their constraints.

Torch does not look at parameters while densities are computed. A Beta of negative concentrations has a density that is
a number, and so has a Bernoulli of a probability of 1.3, which torch clips. Pyro and Stan refuse such a point. Where
draws of the priors show that a site's parameters leave their constraints (`edges.find_walls`), its density is -inf
there, at no cost to all other sites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from inspect import getattr_static
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import constraints

from pyro_fed.density.running.observed_values import mask_of
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic

#: Constraints that need no wall: every number meets them, or torch computes no density beyond them.
WITHOUT_WALL = (
    constraints.real,
    constraints.real_vector,
    constraints.positive_definite,
    constraints.positive_semidefinite,
)


def constrained_parameters(fn: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """Names, constraints and values of the parameters that a distribution is given, but for those that need no wall.

    Args:
        fn: of a site.
    """
    fn = innermost(fn)
    for name, constraint in getattr(fn, "arg_constraints", {}).items():
        if constraint in WITHOUT_WALL or constraints.is_dependent(constraint):
            continue
        given = isinstance(getattr_static(fn, name, None), property)  # a Beta's; what torch computes lazily is none
        value = getattr(fn, name) if given else vars(fn).get(name)
        if isinstance(value, Tensor):
            yield name, constraint, value


class Computed(Messenger):
    """Notes the sites with constrained parameters that depend on what is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def _pyro_post_sample(self, msg: Message) -> None:
        if not is_deterministic(msg) and any(value.requires_grad for *_, value in constrained_parameters(msg["fn"])):
            self.names.add(msg["name"])


def put_walls(trace: Any, names: Collection[str]) -> None:
    """Densities of zero where parameters leave their constraints, in a trace with densities.

    Args:
        trace: of a run of the model.
        names: of sites.
    """
    for name in names:
        site = trace.nodes.get(name, {})
        if "log_prob" in site:
            site["log_prob"] = torch.where(within_constraints(site), site["log_prob"], -torch.inf)
            site["log_prob_sum"] = site["log_prob"].sum()


def within_constraints(site: Message) -> Tensor:
    """Whether the parameters of a site are within their constraints, like its density, or are masked.

    Args:
        site: in a trace.
    """
    fn = site["fn"]
    shape = innermost(fn).batch_shape
    within = torch.ones((), dtype=torch.bool)
    for _, constraint, value in constrained_parameters(fn):
        within = within & constraint.check(value)
    within = within.expand(torch.broadcast_shapes(within.shape, shape))
    within = within.flatten(len(fn.batch_shape)).all(-1) if within.dim() > len(fn.batch_shape) else within
    mask = mask_of(site)
    if mask is None:
        return within
    left_out = ~mask.bool()
    return within | (left_out.flatten(within.dim()).any(-1) if left_out.dim() > within.dim() else left_out)
