"""Every check of the audit, in the order in which a run makes them. A new one is a function here and its module."""

from __future__ import annotations

from collections.abc import Callable

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes import missed
from pyro_fed.audit.stillness import stillness

#: From the evidence to sentences; none where there is nothing to say.
Check = Callable[[Evidence], list[str]]

CHECKS: tuple[Check, ...] = (stillness, missed)


def audit(evidence: Evidence) -> list[str]:
    """Why the result of a run should not be trusted.

    Args:
        evidence: the result.

    Returns:
        One sentence a reason; none where nothing speaks against the result.
    """
    return [sentence for check in CHECKS for sentence in check(evidence)]
