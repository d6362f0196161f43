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


def check_slope(total: Callable[[Tensor], Tensor], slope: Tensor, at: Tensor, sites: Mapping[str, Site]) -> None:
    """Refuse a model whose gradient is not its density's.

    Args:
        total: log densities (M,) at points (M, D), in float64.
        slope: (D,) the gradient at `at`.
        at: (D,).
        sites: latent sites of the flat vector.

    Raises:
        ModelError: names the latents.
    """
    generator = torch.Generator().manual_seed(4)
    direction = torch.randn(len(at), generator=generator, dtype=torch.float64)
    if not _differs(total, slope, at, direction):
        return
    odd = []
    for name, site in sites.items():
        own = torch.zeros_like(direction)
        own[site.start : site.start + site.size] = direction[site.start : site.start + site.size]
        if _differs(total, slope, at, own):
            odd.append(name)
    raise ModelError(
        f"the gradient of the model's log density in {listed(map(repr, odd or sites))} is not that of its values: "
        "something on the way to the density takes the value out of torch's graph, such as .item(), .detach(), "
        "float(), torch.tensor(value) or NumPy, so that no algorithm sees what the data say of it. Compute with "
        "torch's functions on the tensor itself"
    )


def _differs(total: Callable[[Tensor], Tensor], slope: Tensor, at: Tensor, direction: Tensor) -> bool:
    points = torch.stack([at + sign * step * direction for step in STEPS for sign in (1, -1)])
    values = total(points)
    first, second = (values[0::2] - values[1::2]) / (2 * torch.tensor(STEPS, dtype=values.dtype))
    size = (slope * direction).abs().sum() + first.abs()
    wrong = (first - slope @ direction).abs() > WRONG * size
    agree = (first - second).abs() <= AGREE * size
    return bool(values.isfinite().all() & slope.isfinite().all() & wrong & agree)
