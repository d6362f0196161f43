"""Where a density is no number within the support of its latents: the cause of many a run that cannot begin.

A factor log(b - a) of two Normals, a square root of one, a distribution whose stated support is wider than where it has
a density: nothing of this shows at the draws that a model's first run happens to make.
"""

from __future__ import annotations

from contextlib import suppress

import torch

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError

#: Draws of the prior at which densities are looked at, besides zero, where Newton's method begins; and rows of each.
DRAWS, ROWS = 32, 64
SEED = 0


def nan_density_notes(problem: Problem) -> list[str]:
    """A sentence on the site that has no finite density at most of some points of the latents' support; or none.

    Args:
        problem: the model's densities, with its rows.
    """
    if problem.local_dim or problem.layout.discrete:
        return []
    points = torch.zeros(1, problem.dim, dtype=problem.dtype)
    if not problem.layout.improper:
        with suppress(ModelError, *FAILURES):
            points = torch.cat([points, problem.init(DRAWS, torch.Generator().manual_seed(SEED), checked=False)])
    rows, missed = tuple(leaf[:ROWS] for leaf in problem.rows), dict[str, int]()
    with suppress(*FAILURES):
        for z in points[points.isfinite().all(1)]:
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
