"""Images of a point: its values in another order, and with other signs.

A likelihood that does not change if components are relabelled, as a mixture's, or if latents change their signs, as for
(x'w)², has a mode at each image of a mode. If the prior distinguishes these, one holds less mass than the other and may
have a small part of the prior in its basin: climbs that begin at draws of the prior miss it by chance, and climbs that
begin at the images do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import torch
from torch import Tensor

from pyro_fed.density.layout import Site

#: Up to the first number of values are put in every order, up to the second in reverse and shifted by one. More values
#: are left unchanged: they are not components but covariates or groups.
EVERY_ORDER, SOME_ORDERS = 3, 8
#: Signs are changed for all latents on the real line together, and for each site if there are at most this many.
EVERY_SIGN = 3


def images_of(
    point: Tensor,
    values: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    transformed: Tensor,
    unconstrain: Callable[[Mapping[str, Tensor]], Tensor],
) -> Tensor:
    """Other points (R, D), unconstrained, that may have the likelihood of one (D,); R may be zero.

    All sites that have as many values along one of their axes are put in order together: the places, scales and shares
    of a mixture's components, or the rows and the columns of a matrix of transitions.

    Args:
        point: (D,).
        values: the sites' values there, constrained.
        sites: the sites, in the order of the vector.
        transformed: (D,), whether an entry has a transform.
        unconstrain: the vector of values.
    """
    found = [unconstrain(_reordered(values, sites, order)) for order in _orders(sites)]
    found += [torch.where(changed, -point, point) for changed in _signs(sites, transformed)]
    if not found:
        return point.new_zeros(0, len(point))
    every = torch.stack(found)
    usable = every.isfinite().all(1) & (every != point).any(1)
    return every[usable]


def _orders(sites: Mapping[str, Site]) -> list[tuple[int, ...]]:
    """The orders in which values are put, for each number of values that some site has along an axis."""
    orders: list[tuple[int, ...]] = []
    for size in sorted({n for site in sites.values() for n in site.shape if 1 < n <= SOME_ORDERS}):
        whole = tuple(range(size))
        if size <= EVERY_ORDER:
            orders += list(permutations(whole))[1:]
        else:
            orders += [whole[::-1], (*whole[1:], 0)]
    return orders


def _reordered(values: Mapping[str, Tensor], sites: Mapping[str, Site], order: tuple[int, ...]) -> dict[str, Tensor]:
    """Values in another order along each axis that has as many."""
    moved = {}
    for name in sites:
        value = values[name]
        for axis, size in enumerate(value.shape):
            if size == len(order):
                value = value.index_select(axis, torch.tensor(order, device=value.device))
        moved[name] = value
    return moved


def _signs(sites: Mapping[str, Site], transformed: Tensor) -> list[Tensor]:
    """Masks of entries (D,) that change their signs together: of sites on the real line alone."""
    parts = []
    for site in sites.values():
        own = torch.zeros_like(transformed)
        own[site.start : site.start + site.size] = True
        if not bool(transformed[own].any()):
            parts.append(own)
    together = [torch.stack(parts).any(0)] if parts else []
    return together + (parts if 1 < len(parts) <= EVERY_SIGN else [])
