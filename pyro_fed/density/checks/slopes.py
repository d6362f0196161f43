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

#: What a likelihood that is the same wherever one looks is told.
FLAT = (
    "the likelihood is the same at all points at which it was looked at, near zero and where the prior has its mass, "
    "though its gradient is not zero: it is lost in rounding there, as a difference of two distribution functions is "
    "that underflows beside the number that is added to it. Compute it on the log scale: log F(b) + "
    "log1p(-exp(log F(a) - log F(b))) from log-cdfs, such as torch.special.log_ndtr, with both signs changed in the "
    "upper tail; or give the latents a prior whose mass is where the data are"
)


def beside(at: Tensor) -> Tensor:
    """The points (M, D) at which `check_slope` takes the density around one, (D,)."""
    return _along(at, _direction(at))


def check_slope(
    values: Tensor,
    slope: Tensor,
    at: Tensor,
    run: Callable[[Tensor], tuple[Tensor, Tensor]],
    sites: Mapping[str, Site],
    others: Tensor,
    left: Callable[[], str],
    flat: bool,
) -> None:
    """Refuse a model whose gradient is not its density's.

    A value that leaves the graph does so everywhere. A difference that underflows, such as that of two distribution
    functions far out, has lost its value at some points and not at others: a gradient that is wrong at the first point
    and right at another is that of the density.

    Args:
        values: (M,) log densities at the points `beside` this one, in float64.
        slope: (D,) the gradient at `at`.
        at: (D,).
        run: log densities (M,) and gradients (M, D) at points (M, D): it is asked where the gradient is wrong.
        sites: latent sites of the flat vector.
        others: further points, (P, D).
        left: a line of the model that takes a value out of the graph, quoted; empty where none does.
        flat: whether the likelihood is the same at all points.

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
        if _differs(run(_along(at, own))[0], slope, own):
            odd.append(name)
    names, line = listed(map(repr, odd or sites)), left()
    if flat and not line:
        raise ModelError(FLAT)
    if not line and _right_elsewhere(run, torch.cat([others, _nearby(at)]), direction):
        return
    raise ModelError(
        f"the gradient of the model's log density in {names} is not that of its values: "
        f"{line or 'something on the way to the density'} takes the value out of torch's graph, such as .item(), "
        ".detach(), float(), torch.tensor(value) or NumPy, so that no algorithm sees what the data say of it. Compute "
        "with torch's functions on the tensor itself"
    )


def _right_elsewhere(run: Callable[[Tensor], tuple[Tensor, Tensor]], points: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is the density's at one of the points, along this direction."""
    beside_each = torch.cat([_along(point, direction) for point in points])
    values, slopes = run(torch.cat([points, beside_each]))
    count = len(points)
    each = zip(values[count:].reshape(count, -1), slopes[:count], strict=True)
    return any(_is_right(differences, slope, direction) for differences, slope in each)


def _nearby(at: Tensor) -> Tensor:
    """Points around one, (4, D), as far from it as unconstrained latents may well be from each other."""
    generator = torch.Generator().manual_seed(5)
    return at + torch.randn(4, len(at), generator=generator, dtype=torch.float64)


def _direction(at: Tensor) -> Tensor:
    return torch.randn(len(at), generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _along(at: Tensor, direction: Tensor) -> Tensor:
    return torch.stack([at + sign * step * direction for step in STEPS for sign in (1, -1)])


def _differs(values: Tensor, slope: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is wrong, where that can be told."""
    wrong, known = _judged(values, slope, direction)
    return bool(wrong & known)


def _is_right(values: Tensor, slope: Tensor, direction: Tensor) -> bool:
    """Whether the gradient is right, where that can be told."""
    wrong, known = _judged(values, slope, direction)
    return bool(~wrong & known)


def _judged(values: Tensor, slope: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (values[0::2] - values[1::2]) / (2 * torch.tensor(STEPS, dtype=values.dtype))
    size = (slope * direction).abs().sum() + first.abs()
    wrong = (first - slope @ direction).abs() > WRONG * size
    agree = (first - second).abs() <= AGREE * size
    return wrong, agree & values.isfinite().all() & slope.isfinite().all() & (size > 0)
