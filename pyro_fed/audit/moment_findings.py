"""Findings on wrong means and SDs, by chains from the draws (`motion`) or by weighted points, with their cures.

The worst mean or SD beyond the limits is a doubt. One within the limits that is plainly off, and near a limit, is a
note. The figures `measured` are those of `Evidence.moment_figures`, for a result without doubts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.record import NONCENTRED
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes.climbs import MAX_CLIMB_STEPS, mode_uphill
from pyro_fed.audit.moments import Moments, margin, worst_moment, wrong_moments
from pyro_fed.audit.target import Target
from pyro_fed.audit.weighted_points import undetermined_sds, without_variance
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEAR_LIMIT_SHARE, SD_MATTERS, STANDARD_ERRORS, WRONG, Limits
from pyro_fed.density.checks.slopes import STEPS_CURE, steps_warning
from pyro_fed.density.forms import with_hint
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.policy.audit import affords_a_climb, flat_priors_with_few_rows

#: How findings name the two estimators of the posterior's moments.
BY = {
    "chains": "short exact Markov chains that start at them",
    "weights": "importance weights of points that are spread more widely",
}
#: A larger error, in SDs or as a factor, is reported as "more than" this: chains that move so far may still be moving.
LARGEST_REPORTED_ERROR = 3.0


def cure(evidence: Evidence, beyond: bool = False) -> str:
    """The cure that fits, as a sentence without its full stop; `beyond`: weighted points lie outside the draws."""
    if evidence.record.has_private_noise:
        return cures.LESS_NOISE
    if why := evidence.record.refused():
        return cures.replies_not_usable(why)
    if evidence.record.clients_failed():
        return cures.ALL_CLIENTS
    traits = evidence.problem.traits
    if flat_priors_with_few_rows(traits):
        return cures.proper_priors(sorted(traits.improper), traits.num_rows)
    if evidence.jump_lines:
        warning = steps_warning(evidence.jump_lines)
        return f"{warning[0].upper() + warning[1:]}. {cures.WEIGHTS_NEED_NO_SCORES}. {STEPS_CURE}"
    if evidence.record.converged is False and evidence.record.rounds_help:
        return _cure_with_hint(cures.MORE_ROUNDS, evidence)
    if {"precision", "eta"} <= evidence.shared.keys() and not gaussian(evidence.shared).dense:
        # A network with 160 parameters has an accuracy of 0.47 on the digits with a full covariance, 0.63 with a
        # diagonal.
        return cures.judge_by_predictions(traits.dim) if traits.large() else cures.FULL_COVARIANCE
    if "DSVGD" in evidence.record.planned:
        return _cure_with_hint(cures.LEFT_TO_TRY, evidence)
    if beyond:
        return _cure_with_hint(cures.MASS_BEYOND, evidence)
    return _cure_with_hint(evidence.algorithm.remedy or cures.BY_DRAWS[evidence.algorithm.draws_are], evidence)


def _cure_with_hint(sentence: str, evidence: Evidence) -> str:
    """The sentence, with a hint at the non-centred form if that may help, unless a plan tries that form itself."""
    return sentence if NONCENTRED in evidence.record.planned else with_hint(sentence, evidence.problem)


def wrong_moment_findings(evidence: Evidence) -> list[Finding]:
    """One finding on the worst mean or SD that is wrong by chains from the draws or by weighted points, or none."""
    moments = evidence.moments
    if moments is None:
        return []
    if moments.stuck and not moments.whole:
        return []  # diagonal coordinates ignore correlations, so that steps may merely be too long for these
    if moments.stuck:
        return [sentences.chains_are_stuck(**_distance_from_mode(evidence), cures=[cure(evidence)])]
    worst = worst_moment(moments)
    if worst is None:
        return []
    beyond = moments.by == "weights" and float(moments.log_sd[worst.number].exp()) > SD_MATTERS
    figures: dict[str, Any] = {"parameter": evidence.labels[worst.number], "by": BY[moments.by], "error": worst.error}
    figures |= {"largest": LARGEST_REPORTED_ERROR, "bound": worst.bound, "cures": [cure(evidence, beyond)]}
    if worst.of_mean:
        return [sentences.mean_is_off(size=worst.size, **figures)]
    return [sentences.sd_is_off(ratio=worst.size, **figures)]


def _distance_from_mode(evidence: Evidence) -> dict[str, Any]:
    """The parameter whose mean over the draws is farthest from the mode uphill of these, and the SDs; empty if unknown.

    Chains that cannot move show that draws are wrong, and not how far they are off.
    """
    at = evidence.flat.double().mean(0)
    if not affords_a_climb(evidence.problem.traits, MAX_CLIMB_STEPS):
        return {}
    target = Target.around(evidence.problem, at, evidence.temperature)
    white = target.white(at[None])
    mode = mode_uphill(target, white[0])
    if mode is None:
        return {}
    away = mode.shifts(white)[0]
    worst = int(away.argmax())
    return {"parameter": evidence.problem.name_of(worst), "sds": float(away[worst])}


def missed_sd_findings(evidence: Evidence) -> list[Finding]:
    """One finding on an SD that so few draws do not determine, and that is wrong by weighted points, or none."""
    target, points = evidence.few_rows_target, evidence.weighted_points
    if target is None or points is None:
        return []
    moments, kurtoses, undetermined = undetermined_sds(target, evidence.quantities, evidence.flat, points)
    missed = undetermined & wrong_moments(moments)[1]
    missed[evidence.problem.dim :] = False  # a number on a site's own scale may have any tail
    missed[without_variance(target, evidence.flat, missed)] = False
    if not bool(missed.any()):
        return []
    number = int(torch.where(missed, kurtoses, 0.0).argmax())
    ratio = float(moments.log_sd[number].exp())
    finding = sentences.draws_miss_the_sd(
        parameter=evidence.quantities.labels[number],
        kurtosis=float(kurtoses[number]),
        draws=len(evidence.flat),
        sd_ratio=ratio,
        sd_ratio_error=ratio * float(moments.log_sd_error[number]),
    )
    return [finding]


def near_limit_findings(measured: Mapping[str, np.ndarray]) -> list[Finding]:
    """One finding on a moment that is within the limits, but near them, and plainly off, or none."""
    plain = _plain_errors(measured, WRONG, STANDARD_ERRORS)
    if not plain.max() > NEAR_LIMIT_SHARE:
        return []
    return [sentences.moments_close_to_limits(*_worst(measured, plain))]


def aim_error(measured: Mapping[str, np.ndarray], aim: Limits) -> float:
    """The largest likely error of a mean or an SD, in units of a finer aim; 0 if it is within the aim."""
    worst = float(_likely_errors(measured, aim).max())
    return worst if worst > 1 else 0.0


def missed_aim_findings(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD within the limits that is likely to miss a finer aim, or none."""
    if not aim_error(measured, aim):
        return []
    worst = _worst(measured, _likely_errors(measured, aim))
    return [sentences.aim_missed(*worst, mean_error=aim.mean_error, sd_factor=aim.sd_factor)]


def own_aim_findings(errors: tuple[float, float], aim: Limits) -> list[Finding]:
    """One finding if the algorithm's own estimates of its errors (of a mean, a log SD) miss an aim, or none."""
    mean, log_sd = errors
    if mean <= aim.mean_error and log_sd <= math.log(aim.sd_factor):
        return []
    return [sentences.own_aim_missed(mean, log_sd, mean_error=aim.mean_error, sd_factor=aim.sd_factor)]


def sd_at_limit_findings(evidence: Evidence) -> list[Finding]:
    """One finding on an SD that is plainly too small, and within one standard error of the limit, or none."""
    # The SD is beyond the limit with probability one in six or more: chains that remember their start underestimate it.
    measured = evidence.moment_figures
    plain = _plain_errors(measured, WRONG, STANDARD_ERRORS)
    if not plain.max() > 0:
        return []
    moments = Moments.of_figures(measured)
    at_limit = plain * (plain + moments.noise > 1) * (moments.log_sd > 0)
    at_limit[0] = 0.0  # only SDs, not means
    if not bool(at_limit.any()):
        return []
    return [sentences.sd_at_the_limit(*_worst(measured, at_limit), cures=[cure(evidence)])]


def possibly_wrong_findings(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD that plainly misses a finer aim, and may even be beyond the limits, or none."""
    missed = _plain_errors(measured, aim, STANDARD_ERRORS)
    if not missed.max() > 1:
        return []
    moments = Moments.of_figures(measured)
    missed = missed * (missed > 1) * (moments.excess + margin(len(moments.mean)) * moments.noise > 1)
    if not bool(missed.any()):
        return []
    return [sentences.moments_may_be_off(*_worst(measured, missed))]


def _plain_errors(measured: Mapping[str, np.ndarray], limits: Limits, errors: float) -> Tensor:
    """Errors of means and SDs (2, F) in units of limits; 0 where below `errors` standard errors, or unknown."""
    off, noise = Moments.of_figures(measured).against(limits)
    return torch.where(off > errors * noise, off, 0.0)


def _likely_errors(measured: Mapping[str, np.ndarray], aim: Limits) -> Tensor:
    """Errors plus their standard errors (2, F), in units of a finer aim; 0 where an error may be chance."""
    # The error has to be plainly above zero, not plainly above the aim: missing an aim does not make an answer wrong.
    # One standard error more is within chance, and chains that remember their start understate an error.
    moments = Moments.of_figures(measured)
    plain = _plain_errors(measured, aim, margin(len(moments.mean)))
    return torch.where(plain > 0, plain + moments.against(aim)[1], 0.0)


def _worst(measured: Mapping[str, np.ndarray], off: Tensor) -> tuple[str, str]:
    """The parameter with the largest of some errors (2, F), and a clause on it."""
    what, number = divmod(int(off.argmax()), off.shape[1])
    if what == 0:
        clause = f"its mean is {abs(measured['mean_error'][number]):.2f} SDs off"
    else:
        clause = f"its SD is {1 / max(measured['sd_ratio'][number], np.finfo(float).tiny):.2f} times the posterior's"
    return str(measured["parameter"][number]), clause
