"""The checks of a result that is a single point: is it the posterior's mode, and is the posterior's mean at the mode?

The mode is the end of a climb from the point, or else from the origin of unconstrained space or from draws of the
prior. If the point is a mode, short exact chains (`motion`) move draws of the Gaussian with the curvature there. They
show where the posterior's means are: in a skewed or bent posterior not at the mode.

If a climb would take too long, or there is no mode, the check is by how much the log density rises along its gradient.
Most draws of a posterior of D parameters lie about D / 2 nats below its mode. If the log density rises by more, the
point is farther from the mode than most draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.audit.evidence import Evidence, Unknown
from pyro_fed.audit.modes.climbs import MAX_CLIMB_STEPS, Mode, mode_uphill
from pyro_fed.audit.modes.missed_modes import missed_modes
from pyro_fed.audit.moments import worst_moment
from pyro_fed.audit.target import SCORE_STEP, Target, for_checks, scores_at
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import MATTERS, MIN_EFFECTIVE_DRAWS
from pyro_fed.policy.audit import COSTLY_CLIMBS, affords_a_climb

#: Points along the gradient at which the log density is computed, as shares of the distance to a parabola's vertex.
STEP_SHARES = (1.0, 0.5, 0.2, 0.05, 0.01)


def point_findings(evidence: Evidence) -> list[Finding]:
    """One finding on a point that is not the mode, or on a mode that does not give the mean and SD; or none."""
    problem, points = evidence.problem, evidence.flat.double()
    if evidence.algorithm.draws_are != "point":
        return []
    at = points.mean(0)
    mode = None
    for start in _starts(evidence, at) if affords_a_climb(problem.traits, MAX_CLIMB_STEPS) else ():
        target = Target.around(problem, start, evidence.temperature)
        mode = mode_uphill(target, target.white(start[None])[0])
        if mode is not None:
            break
    if mode is None:
        return _below_mode_findings(evidence, at)
    away = mode.shifts(target.white(points)).amax(0)
    if not float(away.max()) > MATTERS:
        return _mean_findings(evidence, target, mode, points)
    worst = int(away.argmax())
    return [
        sentences.point_is_not_the_mode(
            parameter=problem.name_of(worst), sds=float(away[worst]), cures=[_cure(evidence)]
        )
    ]


def _starts(evidence: Evidence, at: Tensor) -> Iterator[Tensor]:
    """Starts (D,) of climbs to the mode: the result `at`, the origin, draws of the prior."""
    yield at
    yield torch.zeros_like(at)
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT)
    yield from evidence.problem.init(COSTLY_CLIMBS[0], generator, checked=False).double()


def _below_mode_findings(evidence: Evidence, at: Tensor) -> list[Finding]:
    """One finding if a point (D,) is farther below the posterior's mode than most draws would be, or none."""
    problem = for_checks(evidence.problem)

    def heights(points: Tensor) -> tuple[Tensor, Tensor]:
        score, value = scores_at(problem, points.to(problem.dtype), evidence.temperature)
        return score.double(), value.double()

    score, value = heights(at[None])
    if not (bool(value.isfinite().all()) and bool(score.isfinite().all())):
        return [sentences.point_has_no_density(cures=[_cure(evidence)])]
    along = score[0] / score[0].norm().clamp_min(torch.finfo(torch.float64).tiny)
    gap = SCORE_STEP * float(at.abs().max().clamp_min(1.0))
    bend = float(along @ (score[0] - heights((at + gap * along)[None])[0][0])) / gap
    # The distance to the vertex of a parabola with this curvature; without a vertex, the distance from the origin.
    top = float(score[0].norm()) / bend if bend > 0 else float(at.norm().clamp_min(1.0))
    steps = top * torch.tensor(STEP_SHARES, dtype=torch.float64)
    values = heights(at + steps[:, None] * along)[1]
    rise = float(torch.where(values.isfinite(), values, -torch.inf).max() - value[0])
    if not rise > len(at) / 2:
        return []
    return [sentences.point_is_below_the_mode(nats=rise, dim=len(at), cures=[_cure(evidence)])]


def _cure(evidence: Evidence) -> str:
    """The cure for a point that is not the mode, a sentence without its full stop."""
    takes_prior = bool(getattr(evidence.algorithm, "prior", True))
    without = "" if takes_prior else ", and prior=True: without the prior the point is that of the likelihood"
    return f"Take more rounds, with fewer steps each or shorter ones{without}"


def _mean_findings(evidence: Evidence, target: Target, mode: Mode, points: Tensor) -> list[Finding]:
    """One finding on a mean or SD that the mode and its curvature do not give, or on other modes; or none."""
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT)
    normal = torch.randn(MIN_EFFECTIVE_DRAWS, len(mode.at), generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(mode.precision)
    draws = target.model(mode.at + torch.linalg.solve_triangular(factor.T, normal.T, upper=True).T)
    around = replace(evidence, algorithm=cast("Algorithm", Unknown("independent")), draws=draws[None], shared={})
    moments, quantities = around.moments, around.quantities
    if moments is None or moments.stuck:
        return []
    drawn, at = quantities(draws), quantities(points).mean(0)
    away = (drawn.mean(0) - at) / (drawn.std(0) * moments.log_sd.exp()) + moments.mean
    moments = replace(moments, mean=away.nan_to_num(0.0))
    worst = worst_moment(moments)
    if worst is None:
        return [
            sentences.around_the_point(found=one.text, lost=float(one.figures["lost"])) for one in missed_modes(around)
        ]
    name, amount = quantities.labels[worst.number], f"{worst.size:.2f} ± {worst.error:.2f}"
    clause = (
        f"its mean of {sentences.quote_name(name)} is {amount} posterior SDs away"
        if worst.of_mean
        else f"its SD of {sentences.quote_name(name)} is {amount} times the curvature's"
    )
    return [sentences.mode_is_not_the_mean(parameter=name, off=clause)]
