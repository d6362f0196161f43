"""Findings on means and SDs that are off, by chains from the draws (`motion`) or weighted points, with the cure.

The worst mean or SD beyond the limits is a doubt; one within the limits, but plainly off and near a limit, is a note.
Figures `measured` are those of `Evidence.moment_figures`, of a result without doubts.
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
from pyro_fed.audit.moments import Moments, margin, worst_moment
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEAR_LIMIT_SHARE, SD_MATTERS, STANDARD_ERRORS, WRONG, Limits
from pyro_fed.density.checks.slopes import STEPS_CURE, steps_warning
from pyro_fed.density.forms import with_hint
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.policy.audit import flat_priors_with_few_rows

#: The posterior's moments are estimated by these.
BY = {
    "chains": "short exact Markov chains that start at them",
    "weights": "importance weights of points that are spread more widely",
}
#: SDs, or a factor: a larger error is reported as "more than" this, since chains that move so far may not have arrived.
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
        said = steps_warning(evidence.jump_lines)
        return f"{said[0].upper() + said[1:]}. {cures.WEIGHTS_NEED_NO_SCORES}. {STEPS_CURE}"
    if evidence.record.converged is False and evidence.record.rounds_help:
        return _cure_with_hint(cures.MORE_ROUNDS, evidence)
    if {"precision", "eta"} <= evidence.shared.keys() and not gaussian(evidence.shared).dense:
        # With 160 parameters on the digits a network's full covariance has an accuracy of 0.47, a diagonal one of 0.63.
        return cures.judge_by_predictions(traits.dim) if traits.large() else cures.FULL_COVARIANCE
    if "DSVGD" in evidence.record.planned:
        return _cure_with_hint(cures.LEFT_TO_TRY, evidence)
    if beyond:
        return _cure_with_hint(cures.MASS_BEYOND, evidence)
    return _cure_with_hint(evidence.algorithm.remedy or cures.BY_DRAWS[evidence.algorithm.draws_are], evidence)


def _cure_with_hint(said: str, evidence: Evidence) -> str:
    """The cure, with a hint at the non-centred form if that may help, unless a plan tries that form itself."""
    return said if NONCENTRED in evidence.record.planned else with_hint(said, evidence.problem)


def wrong_moment_findings(evidence: Evidence) -> list[Finding]:
    """One finding on the worst mean or SD that is wrong by chains from the draws or by weighted points, or none."""
    found = evidence.moments
    if found is None:
        return []
    if found.stuck and not found.whole:
        return []  # steps may only be too long for correlations, which coordinates without them do not show
    if found.stuck:
        return [sentences.chains_are_stuck(cures=[cure(evidence)])]
    worst = worst_moment(found)
    if worst is None:
        return []
    beyond = found.by == "weights" and float(found.log_sd[worst.number].exp()) > SD_MATTERS
    said: dict[str, Any] = {"parameter": evidence.labels[worst.number], "by": BY[found.by], "error": worst.error}
    said |= {"largest": LARGEST_REPORTED_ERROR, "bound": worst.bound, "cures": [cure(evidence, beyond)]}
    if worst.of_mean:
        return [sentences.mean_is_off(size=worst.size, **said)]
    return [sentences.sd_is_off(ratio=worst.size, **said)]


def near_limit_findings(measured: Mapping[str, np.ndarray]) -> list[Finding]:
    """One finding on a moment that is within the limits, but near them, and plainly off, or none."""
    plain = _off(measured, WRONG, STANDARD_ERRORS)
    if not plain.max() > NEAR_LIMIT_SHARE:
        return []
    return [sentences.moments_close_to_limits(*_worst(measured, plain))]


def aim_error(measured: Mapping[str, np.ndarray], aim: Limits) -> float:
    """The largest error of a mean or an SD, in units of a finer aim; 0 if none is likely to miss it."""
    worst = float(_likely(measured, aim).max())
    return worst if worst > 1 else 0.0


def missed_aim_findings(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD that is within the limits, but likely to miss a finer aim, or none."""
    if not aim_error(measured, aim):
        return []
    worst = _worst(measured, _likely(measured, aim))
    return [sentences.aim_missed(*worst, mean_error=aim.mean_error, sd_factor=aim.sd_factor)]


def own_aim_findings(errors: tuple[float, float], aim: Limits) -> list[Finding]:
    """One finding on errors of a mean and a log SD, as an algorithm itself estimates, that miss an aim, or none."""
    mean, log_sd = errors
    if mean <= aim.mean_error and log_sd <= math.log(aim.sd_factor):
        return []
    return [sentences.own_aim_missed(mean, log_sd, mean_error=aim.mean_error, sd_factor=aim.sd_factor)]


def sd_at_limit_findings(evidence: Evidence) -> list[Finding]:
    """One finding on an SD that is plainly too small, and as near to the limit as its standard error, or none."""
    # It is beyond the limit with a chance of one in six or more: chains that remember their start see too little of it.
    measured = evidence.moment_figures
    plain = _off(measured, WRONG, STANDARD_ERRORS)
    if not plain.max() > 0:
        return []
    found = Moments.of_figures(measured)
    at = plain * (plain + found.noise > 1) * (found.log_sd > 0)
    at[0] = 0.0  # the means
    if not bool(at.any()):
        return []
    return [sentences.sd_at_the_limit(*_worst(measured, at), cures=[cure(evidence)])]


def possibly_wrong_findings(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD that plainly misses a finer aim, and may even be beyond the limits, or none."""
    missed = _off(measured, aim, STANDARD_ERRORS)
    if not missed.max() > 1:
        return []
    found = Moments.of_figures(measured)
    missed = missed * (missed > 1) * (found.excess + margin(len(found.mean)) * found.noise > 1)
    if not bool(missed.any()):
        return []
    return [sentences.moments_may_be_off(*_worst(measured, missed))]


def _off(measured: Mapping[str, np.ndarray], limits: Limits, errors: float) -> Tensor:
    """Errors of means and SDs (2, F) in units of limits; 0 if one is below `errors` standard errors, or unknown."""
    off, noise = Moments.of_figures(measured).against(limits)
    return torch.where(off > errors * noise, off, 0.0)


def _likely(measured: Mapping[str, np.ndarray], aim: Limits) -> Tensor:
    """Errors (2, F) in units of a finer aim; 0 if the error as a whole may be chance, among so many numbers."""
    # An error that is plain, if not plainly beyond the aim, is enough: it takes less than to call an answer wrong.
    return _off(measured, aim, margin(len(Moments.of_figures(measured).mean)))


def _worst(measured: Mapping[str, np.ndarray], off: Tensor) -> tuple[str, str]:
    """The parameter with the largest of some errors (2, F), and a clause on it."""
    what, number = divmod(int(off.argmax()), off.shape[1])
    if what == 0:
        clause = f"its mean is {abs(measured['mean_error'][number]):.2f} SDs off"
    else:
        clause = f"its SD is {1 / max(measured['sd_ratio'][number], np.finfo(float).tiny):.2f} times the posterior's"
    return str(measured["parameter"][number]), clause
