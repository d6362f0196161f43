"""The check of draws that should hold still: a mean or an SD that exact chains take away, and what to do about it.

One sentence, on the worst of them (see `motion` for how they are found). Where all are within the limits, and one of
them is plainly not right but near its limit, that is said too: it is no doubt, yet nobody should take it for exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pyro_fed.audit.advice import cure
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.motion import PLAIN, Moments, wrong
from pyro_fed.audit.quantities import quoted
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS

#: A mean further away than this is said to be so: chains that come from so far may be on their way still.
FAR = 3.0
#: Part of what matters from which on an error is near the limit: a mean 0.2 SDs off, an SD of 0.84 or 1.2 times.
NEAR = 0.8


def stillness(evidence: Evidence) -> list[str]:
    """A mean or an SD that chains from the draws take away.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none.
    """
    found = evidence.moments
    if found is None:
        return []
    if found.stuck:
        return _stuck(evidence, found)
    bad = wrong(found)
    if not bool(bad.any()):
        return []
    what, number = divmod(int((found.excess * bad).argmax()), len(found.mean))
    name = quoted(evidence.quantities.labels[number])
    said = _mean(found, number, name) if what == 0 else _sd(found, number, name)
    return [f"these draws are not the posterior's: short exact chains that begin at them {said}. {cure(evidence)}"]


def _mean(found: Moments, number: int, name: str) -> str:
    size, error = abs(float(found.mean[number])), float(found.mean_error[number])
    many = f"more than {FAR:g}" if size > FAR else f"{size:.2f} ± {error:.2f}"
    return f"move the mean of {name} by {many} SDs"


def _sd(found: Moments, number: int, name: str) -> str:
    ratio, error = float(found.log_sd[number].exp()), float(found.log_sd_error[number])
    if ratio > FAR or ratio < 1 / FAR:
        many = f"to more than {FAR:g} times" if ratio > 1 else "to less than a third of"
    else:
        many = f"to {ratio:.2f} ± {ratio * error:.2f} times"
    return f"take the SD of {name} {many} what it was"


def _stuck(evidence: Evidence, found: Moments) -> list[str]:
    if not found.whole:
        return []  # nothing is known of the directions in which steps would have to be short
    return [
        "these draws are not the posterior's: no exact chain can move from them, even by steps far shorter than their "
        f"own spread, so that the posterior is much narrower there. {cure(evidence)}"
    ]


def close_call(measured: Mapping[str, np.ndarray]) -> list[str]:
    """A mean or an SD that is within the limits, but away from right by more than chance, and near the limit.

    Args:
        measured: figures of `Evidence.measured`, of a result without doubts.

    Returns:
        One sentence, or none.
    """
    if not measured:
        return []
    ratio = np.maximum(measured["sd_ratio"], np.finfo(float).tiny)
    limits = np.array([[MATTERS], [np.log(SD_MATTERS)]])
    excess = np.abs(np.stack([measured["mean_error"], np.log(ratio)])) / limits
    noise = np.stack([measured["mean_error_se"], measured["sd_ratio_se"] / ratio]) / limits
    plain = excess * (excess > PLAIN * noise)
    if not plain.max() > NEAR:
        return []
    what, number = divmod(int(plain.argmax()), excess.shape[1])
    error = measured["mean_error"][number]
    sd = f"its SD is {1 / ratio[number]:.2f} times the posterior's"
    off = f"its mean is {abs(error):.2f} SDs off" if what == 0 else sd
    return [
        f"means and SDs are within the limits ({MATTERS:g} SDs, a factor of {SD_MATTERS:g}), but near them: "
        f"{quoted(str(measured['parameter'][number]))}, {off}, by short exact chains. "
        "The group 'audit' has all of them"
    ]
