"""Every check of the audit, in the order in which a run makes them. A new one is a function here and its module."""

from __future__ import annotations

from collections.abc import Callable

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes import missed
from pyro_fed.audit.stillness import stillness

#: From the evidence to sentences; none where there is nothing to say.
Check = Callable[[Evidence], list[str]]


def draws(evidence: Evidence) -> list[str]:
    """Draws that are not the posterior's, by one cause: modes that they miss, or else what chains find.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none.
    """
    still = stillness(evidence)
    if evidence.moments is not None and evidence.moments.stuck:
        return still  # what is far from the posterior says nothing of its modes
    return missed(evidence) or still


CHECKS: tuple[Check, ...] = (draws,)


def audit(evidence: Evidence) -> list[str]:
    """Why the result of a run should not be trusted.

    Args:
        evidence: the result.

    Returns:
        One sentence a reason; none where nothing speaks against the result.
    """
    return [sentence for check in CHECKS for sentence in check(evidence)]
