"""A result that is a point has no draws to judge: it is judged by its distance from the mode that it climbs to."""

from __future__ import annotations

import torch

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes.climbs import CLIMB, LARGEST_DIM, ascended, climbed
from pyro_fed.audit.motion import DENSITIES
from pyro_fed.audit.target import Target
from pyro_fed.conventions.limits import MATTERS


def off_mode(evidence: Evidence) -> list[str]:
    """A point that is not the posterior's mode, as near as it may be.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none: of distributions, and of points from which no climb arrives.
    """
    problem, points = evidence.problem, evidence.flat.double()
    if evidence.algorithm.draws_are != "point" or problem.dim > LARGEST_DIM or problem.looped:
        return []
    if problem.evaluations * (CLIMB + problem.dim) > DENSITIES:
        return []
    target = Target.around(problem, points.mean(0), evidence.temperature)
    ends, arrived = climbed(target, target.white(points.mean(0)[None]))
    mode = ascended(target, ends[0]) if bool(arrived[0]) else None
    if mode is None:
        return []
    sd = torch.linalg.inv(mode.precision).diagonal().sqrt()
    away = ((target.white(points) - mode.at) / sd).abs().amax(0)
    if not float(away.max()) > MATTERS:
        return []
    without = ", and prior=True, without which it is not what it aims at" if not _prior(evidence) else ""
    return [
        f"this point is not the posterior's mode: '{problem.name_of(int(away.argmax()))}' is {float(away.max()):.2f} "
        f"posterior SDs (by Laplace) from it. Take more rounds, with fewer steps each or shorter ones{without}; FedEP "
        "and FedLaplace give SDs too"
    ]


def _prior(evidence: Evidence) -> bool:
    """Whether a point's algorithm takes the prior into account."""
    return bool(getattr(evidence.algorithm, "prior", True))
