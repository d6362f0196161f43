"""Where a density is NaN within the support of its latents: the cause of many runs that cannot begin.

A factor log(b - a) of two Normals, a square root of one, a distribution whose stated support is wider than that of its
density: none of this shows at the draws of a model's first run. Nor does a derivative of few of many rows, as
`check_splits` examines only some.
"""

from __future__ import annotations

from contextlib import suppress

import torch

from pyro_fed.density.checks.points import FEW_DRAWS, FEW_ROWS, NUM_DRAWS, ROWS_TOGETHER
from pyro_fed.density.checks.undefined import UndefinedError, refuse_undefined
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError


def nan_density_notes(problem: Problem) -> list[str]:
    """A sentence on a site without a finite density or derivative on the latents' support; or none.

    Densities are examined at draws of the prior and at zero, where Newton's method begins; derivatives at a few draws.
    """
    points = torch.zeros(1, problem.dim, dtype=problem.dtype)
    if not problem.layout.improper:
        with suppress(ModelError, *FAILURES):
            points = torch.cat([points, problem.init(NUM_DRAWS, torch.Generator().manual_seed(0), checked=False)])
    points = points[points.isfinite().all(1)]
    return _of_derivatives(problem, points[1 : 1 + FEW_DRAWS].double()) or _of_densities(problem, points)


def _of_derivatives(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on rows whose density or derivative is finite at none of the points."""
    judged, generator = problem.doubled(), torch.Generator().manual_seed(0)
    try:
        for some in torch.arange(problem.num_rows).split(ROWS_TOGETHER) if len(points) else ():
            local = torch.randn(len(points), len(some), problem.local_dim, generator=generator, dtype=torch.float64)
            refuse_undefined(judged, points, tuple(leaf[some] for leaf in judged.rows), local, some)
    except UndefinedError as error:
        return [str(error)]
    except FAILURES:  # if torch has no second derivative
        pass
    return []


def _of_densities(problem: Problem, points: torch.Tensor) -> list[str]:
    """A sentence on the site whose density is finite at the fewest of the points."""
    if problem.local_dim or problem.layout.discrete:
        return []
    rows, missed = tuple(leaf[:FEW_ROWS] for leaf in problem.rows), dict[str, int]()
    with suppress(*FAILURES):
        for z in points:
            for terms in problem.log_terms(z, rows):
                for name, value in terms.items():
                    missed[name] = missed.get(name, 0) + int(not bool(value.isfinite().all()))
    name = max(missed, key=lambda one: missed[one], default="")
    if not name or not missed[name]:
        return []
    return [
        f"the density of '{name}' is no finite number at {missed[name]} of {len(points)} points that the latents' "
        "priors allow (zero, unconstrained, and draws of the prior): give the latents a support in which it is one, "
        "such as a HalfNormal's in place of a Normal's, or OrderedTransform's of a vector"
    ]
