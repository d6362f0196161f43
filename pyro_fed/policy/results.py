"""The contents of a result, given the sizes of its groups, and the check of integrals over rows' own latents."""

from __future__ import annotations

from dataclasses import replace

from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.traits import Traits

#: Largest draws × rows × latents for which the rows' latents are collected.
MAX_COLLECTED = 100_000_000
#: Largest draws × rows for which the pointwise log-likelihood is kept.
MAX_POINTWISE = 400_000_000
#: Largest draws × rows for which the log density of the draws is computed without log-likelihoods; beyond it, the log
#: density would take longer than many algorithms.
MAX_UNASKED = 50_000_000
#: A finer quadrature rule has this many more nodes per dimension, and this many times as many nodes in all.
MORE_NODES, MORE_TIMES = 20, 4


def integrates_latents(traits: Traits) -> bool:
    """Whether rows have latents of their own, which are integrated out."""
    return traits.local_dim > 0


def has_single_latents(traits: Traits) -> bool:
    """Whether rows have one latent each, along which a density can be followed."""
    return traits.local_dim == 1


def collects_latents(traits: Traits, draws: int) -> bool:
    """Whether the rows' latents are drawn and collected for this number of draws."""
    return draws * traits.num_rows * traits.local_dim <= MAX_COLLECTED


def finer_rule(traits: Traits, rule: Quadrature) -> Quadrature:
    """A rule with more nodes; for a single latent they are placed by its tails, which the curvature may miss."""
    order, most = (rule.order or rule.max_order) + MORE_NODES, MORE_TIMES * rule.max_nodes
    return replace(rule, order=order, max_nodes=most, tails=True if traits.local_dim == 1 else rule.tails)


def rule_arguments(traits: Traits, rule: Quadrature) -> str:
    """The arguments of `pf.Quadrature` for a rule of `finer_rule`, as text."""
    tails = ", tails=True" if traits.local_dim == 1 else ""
    tails += f", starts={rule.starts}" if rule.starts else ""
    many = traits.local_dim > 1 or (rule.order or 0) > Quadrature.max_nodes
    return f"order={rule.order}{tails}" + (f", max_nodes={rule.max_nodes}" if many else "")


def uncompiled_level(traits: Traits) -> str:
    """The compiler's level for a single step, which is not compiled; models that cannot be mapped are looped."""
    return "loop" if traits.looped else "off"
