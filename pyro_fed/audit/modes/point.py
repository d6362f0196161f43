"""A result that is a point has no draws to judge: is it the posterior's mode, and is the mode where the mean is?

The mode is what the point climbs to. Where it is one, draws of the Gaussian with the curvature there are moved by short
exact chains (`motion`), which tell where the posterior's means are: in a skewed or bent posterior not at the mode. And
there may be other modes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.audit.evidence import FEWEST_DRAWS, Evidence, Unknown
from pyro_fed.audit.modes.climbs import CLIMB, LARGEST_DIM, Mode, ascended, climbed
from pyro_fed.audit.modes.missed import missed
from pyro_fed.audit.motion import DENSITIES, wrong
from pyro_fed.audit.quantities import quoted
from pyro_fed.audit.target import Target
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import MATTERS


def off_mode(evidence: Evidence) -> list[str]:
    """A point that is not the posterior's mode, as near as it may be, or whose mode is not its mean.

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
        return _off_mean(evidence, target, mode, points)
    without = ", and prior=True, without which it is not what it aims at" if not _prior(evidence) else ""
    return [
        f"this point is not the posterior's mode: '{problem.name_of(int(away.argmax()))}' is {float(away.max()):.2f} "
        f"posterior SDs (by Laplace) from it. Take more rounds, with fewer steps each or shorter ones{without}; FedEP "
        "and FedLaplace give SDs too"
    ]


def _off_mean(evidence: Evidence, target: Target, mode: Mode, points: Tensor) -> list[str]:
    """A mean or an SD of the posterior that this mode, where the points (S, D) are, does not tell, or other modes."""
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT)
    normal = torch.randn(FEWEST_DRAWS, len(mode.at), generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(mode.precision)
    draws = target.model(mode.at + torch.linalg.solve_triangular(factor.T, normal.T, upper=True).T)
    around = replace(evidence, algorithm=cast("Algorithm", Unknown("independent")), draws=draws[None], shared={})
    found, quantities = around.moments, around.quantities
    if found is None or found.stuck:
        return []
    drawn, at = quantities(draws), quantities(points).mean(0)
    away = (drawn.mean(0) - at) / (drawn.std(0) * found.log_sd.exp()) + found.mean
    found = replace(found, mean=away.nan_to_num(0.0))
    bad = wrong(found)
    if not bool(bad.any()):
        return [f"of draws around this point, with its curvature: {said}" for said in missed(around)]
    what, number = divmod(int((found.excess * bad).argmax()), len(away))
    name = quoted(quantities.labels[number])
    many = f"{float(found.mean[number].abs()):.2f} ± {float(found.mean_error[number]):.2f}"
    ratio = float(found.log_sd[number].exp())
    said = (
        f"its mean of {name} is {many} posterior SDs away"
        if what == 0
        else f"its SD of {name} is {ratio:.2f} ± {ratio * float(found.log_sd_error[number]):.2f} times the curvature's"
    )
    return [
        f"this point is the posterior's mode, but the posterior is not Gaussian around it: {said}, by short exact "
        "chains. A point tells neither means nor SDs of skewed or bent posteriors: take FedEP, FedAIS or Auto"
    ]


def _prior(evidence: Evidence) -> bool:
    """Whether a point's algorithm takes the prior into account."""
    return bool(getattr(evidence.algorithm, "prior", True))
