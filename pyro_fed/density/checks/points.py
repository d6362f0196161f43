"""Points and rows at which a model is examined: near zero, and where its prior has its mass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fed.density.running.trace_sites import unconstraining

if TYPE_CHECKING:
    from pyro_fed.density.bound import RowDensities
    from pyro_fed.density.checks.first_run import FirstRun
    from pyro_fed.density.layout import Site

#: Spread of the points near zero.
SPREAD = 0.1
#: Half the width of the interval for latents whose prior cannot be drawn from, and of the second point.
RADIUS = 2.0
#: Largest distance from zero: a heavy tail's draw overflows, and shows nothing.
MAX_PRIOR_DRAW = 50.0
#: Draws of the prior at which densities are examined, the first of them where each costs a run of its own or more than
#: a density; and draws among which one with a finite density is looked for.
NUM_DRAWS, FEW_DRAWS, MAX_TRIES = 32, 4, 100
#: Rows that are examined together; and the number where few of all are.
ROWS_TOGETHER, FEW_ROWS = 2048, 64


def points(problem: RowDensities, seen: FirstRun) -> Tensor:
    """Three unconstrained points (3, D), float64: near zero, within `RADIUS` of it, and a draw of the priors.

    The priors are those of the first run: a prior whose parameters are latents is used with these near zero. If the
    first run was spread, the first point is its own.
    """
    generator = torch.Generator().manual_seed(0)
    near = SPREAD * torch.randn(problem.dim, generator=generator, dtype=torch.float64)
    if seen.spread:
        near = torch.cat([near[:0], *(seen.point[name].flatten().double() for name in problem.sites)])
    middle, far = (
        torch.cat([near[:0], *(_draw(seen, site, generator) for site in problem.sites.values())]) for _ in range(2)
    )
    return torch.stack([near, middle.clamp(-RADIUS, RADIUS), far.clamp(-MAX_PRIOR_DRAW, MAX_PRIOR_DRAW)])


def _draw(seen: FirstRun, site: Site, generator: torch.Generator) -> Tensor:
    """A draw of a site's prior, unconstrained and flat; uniform if it cannot be drawn from."""
    msg = seen.execution.trace.nodes[site.name]
    uniform = RADIUS * (2 * torch.rand(site.size, generator=generator, dtype=torch.float64) - 1)
    with torch.random.fork_rng(devices=[]):  # torch.manual_seed would ask every kind of device, for 0.3 ms
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            drawn = unconstraining(msg).inv(msg["fn"].sample()).flatten().double()
        except (NotImplementedError, RuntimeError, ValueError):  # such as an improper prior
            return uniform
    return torch.where(drawn.isfinite(), drawn, uniform)


def local_points(problem: RowDensities, seen: FirstRun, at: Tensor) -> Tensor:
    """Unconstrained latents (3, n, d), float64, of the rows with numbers `at` (n,), at the three points."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, len(at), problem.local_dim, generator=generator, dtype=torch.float64)
    drawn[0] *= SPREAD
    if seen.spread:
        own: list[Any] = [site.by_rows(seen.point[name])[at] for name, site in problem.layout.local.items()]
        drawn[0] = torch.cat([drawn[0, :, :0], *own], -1)
    return drawn
