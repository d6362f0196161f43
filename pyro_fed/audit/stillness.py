"""Findings on means and SDs that are off, by chains from the draws (`motion`) or weighted points, with the cure.

A doubt is one sentence, on the worst mean or SD. A mean or an SD that is within the limits, but plainly off and near
a limit, is reported too. That is not a doubt, but the result is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fed.audit.advice import cure
from pyro_fed.audit.chains.moments import Moments, margin, worst_moment
from pyro_fed.audit.evidence import Evidence
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEAR_LIMIT_SHARE, SD_MATTERS, STANDARD_ERRORS, WRONG, Limits

#: The posterior's moments are estimated by these.
BY = {
    "chains": "short exact Markov chains that start at them",
    "weights": "importance weights of points that are spread more widely",
}
#: SDs, or a factor: a larger error is reported as "more than" this, since chains that move so far may not have arrived.
LARGEST_REPORTED_ERROR = 3.0


def stillness(evidence: Evidence) -> list[Finding]:
    """One finding on the worst mean or SD that is wrong by chains from the draws or by weighted points, or none."""
    found = evidence.moments
    if found is None:
        return []
    if found.stuck:
        return _stuck(evidence, found)
    worst = worst_moment(found)
    if worst is None:
        return []
    beyond = found.by == "weights" and float(found.log_sd[worst.number].exp()) > SD_MATTERS
    said: dict[str, Any] = {"parameter": evidence.labels[worst.number], "by": BY[found.by], "error": worst.error}
    said |= {"largest": LARGEST_REPORTED_ERROR, "bound": worst.bound, "cures": [cure(evidence, beyond)]}
    if worst.of_mean:
        return [sentences.mean_is_off(size=worst.size, **said)]
    return [sentences.sd_is_off(ratio=worst.size, **said)]


def _stuck(evidence: Evidence, found: Moments) -> list[Finding]:
    if not found.whole:
        return []  # steps may only be too long for correlations, which coordinates without them do not show
    return [sentences.chains_are_stuck(cures=[cure(evidence)])]


def close_call(measured: Mapping[str, np.ndarray]) -> list[Finding]:
    """One finding on a moment that is within the limits, but near them, and plainly off, or none.

    `measured` are the figures of `Evidence.moment_figures`, of a result without doubts.
    """
    plain = _off(measured, WRONG, STANDARD_ERRORS)
    if not plain.max() > NEAR_LIMIT_SHARE:
        return []
    return [sentences.moments_close_to_limits(*_worst(measured, plain))]


def off_aim(measured: Mapping[str, np.ndarray], aim: Limits) -> float:
    """The largest error of a mean or an SD, in units of a finer aim; 0 if none is likely to miss it.

    `measured` are the figures of `Evidence.moment_figures`.
    """
    worst = float(_likely(measured, aim).max())
    return worst if worst > 1 else 0.0


def missed_aim(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD that is within the limits, but likely to miss a finer aim, or none.

    `measured` are the figures of `Evidence.moment_figures`, of a result without doubts.
    """
    if not off_aim(measured, aim):
        return []
    worst = _worst(measured, _likely(measured, aim))
    return [sentences.aim_missed(*worst, mean_error=aim.mean_error, sd_factor=aim.sd_factor)]


def at_limit(evidence: Evidence) -> list[Finding]:
    """One finding on an SD that is plainly too small, and as near to the limit as its standard error, or none.

    It is beyond the limit with a chance of one in six or more, since chains that remember the draws they began at see
    too little of what is missing. The result has no doubts.
    """
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


def perhaps_wrong(measured: Mapping[str, np.ndarray], aim: Limits) -> list[Finding]:
    """One finding on a mean or an SD that plainly misses a finer aim, and may even be beyond the limits, or none.

    `measured` are the figures of `Evidence.moment_figures`, of a result without doubts.
    """
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
    """Errors (2, F) in units of a finer aim; 0 if the error as a whole may be chance, among so many numbers.

    A better answer is sought if there is plainly an error, even if it is not plainly beyond the aim: this takes less
    than to call an answer wrong. A smaller error often means that few chains do not determine the SD of a long tail.
    The next answer would then be chosen by chance.
    """
    return _off(measured, aim, margin(len(Moments.of_figures(measured).mean)))


def _worst(measured: Mapping[str, np.ndarray], off: Tensor) -> tuple[str, str]:
    """The parameter with the largest of some errors (2, F), and a clause on it."""
    what, number = divmod(int(off.argmax()), off.shape[1])
    if what == 0:
        clause = f"its mean is {abs(measured['mean_error'][number]):.2f} SDs off"
    else:
        clause = f"its SD is {1 / max(measured['sd_ratio'][number], np.finfo(float).tiny):.2f} times the posterior's"
    return str(measured["parameter"][number]), clause
