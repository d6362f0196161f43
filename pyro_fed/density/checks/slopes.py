"""A model whose gradient is not that of its density: `.item()`, `.detach()` and NumPy take a value out of the graph.

All algorithms follow gradients, and would not see what the density says of such a latent. Along a direction d the
gradient g is compared with the central difference (f(z + h d) - f(z - h d)) / 2h at two steps h, in float64; where the
two differences agree with each other, and not with g · d, it is the gradient that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyro_fed.density.layout import Site
from pyro_fed.errors import ModelError, listed

#: The two steps, in units of the unconstrained space: rounding is 1e-9 of the density there, curvature 1e-6 of it.
STEPS = (1e-4, 3e-5)
#: The differences agree to this part, and a gradient that is off by the other is wrong.
AGREE, WRONG = 1e-3, 1e-2


def beside(at: Tensor) -> Tensor:
    """The points (M, D) at which `check_slope` takes the density around one, (D,)."""
    return _along(at, _direction(at))


def check_slope(
    values: Tensor, slope: Tensor, at: Tensor, total: Callable[[Tensor], Tensor], sites: Mapping[str, Site]
) -> None:
    """Refuse a model whose gradient is not its density's.

    Args:
        values: (M,) log densities at the points `beside` this one, in float64.
        slope: (D,) the gradient at `at`.
        at: (D,).
        total: log densities (M,) at points (M, D): it is asked where the gradient is wrong, for the latents' names.
        sites: latent sites of the flat vector.

    Raises:
        ModelError: names the latents.
    """
    direction = _direction(at)
    if not _differs(values, slope, direction):
        return
    odd = []
    for name, site in sites.items():
        own = torch.zeros_like(direction)
        own[site.start : site.start + site.size] = direction[site.start : site.start + site.size]
        if _differs(total(_along(at, own)), slope, own):
            odd.append(name)
    raise ModelError(
        f"the gradient of the model's log density in {listed(map(repr, odd or sites))} is not that of its values: "
        "something on the way to the density takes the value out of torch's graph, such as .item(), .detach(), "
        "float(), torch.tensor(value) or NumPy, so that no algorithm sees what the data say of it. Compute with "
        "torch's functions on the tensor itself"
    )


def _direction(at: Tensor) -> Tensor:
    return torch.randn(len(at), generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _along(at: Tensor, direction: Tensor) -> Tensor:
    return torch.stack([at + sign * step * direction for step in STEPS for sign in (1, -1)])


def _differs(values: Tensor, slope: Tensor, direction: Tensor) -> bool:
    first, second = (values[0::2] - values[1::2]) / (2 * torch.tensor(STEPS, dtype=values.dtype))
    size = (slope * direction).abs().sum() + first.abs()
    wrong = (first - slope @ direction).abs() > WRONG * size
    agree = (first - second).abs() <= AGREE * size
    return bool(values.isfinite().all() & slope.isfinite().all() & wrong & agree)
