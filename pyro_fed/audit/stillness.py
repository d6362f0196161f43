"""The check of draws that should hold still: a mean or an SD that exact chains take away, and what to do about it.

One sentence, on the worst of them (see `motion` for how they are found).
"""

from __future__ import annotations

from pyro_fed.audit.advice import cure
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.motion import Moments, wrong

#: A mean further away than this is said to be so: chains that come from so far may be on their way still.
FAR = 3.0


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
    label, *scale = evidence.quantities.labels[number].split(" ", 1)
    name = " ".join([f"'{label}'", *scale])
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
