"""Every check of the audit, in the order in which a run makes them. A new check is a module and an entry here."""

from __future__ import annotations

from collections.abc import Callable

from pyro_fed.audit.chains.moments import moments_verdict, wrong_moments
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes.angles import findings_with_causes
from pyro_fed.audit.modes.missed_modes import missed_modes
from pyro_fed.audit.modes.point import off_mode
from pyro_fed.audit.precision import precision
from pyro_fed.audit.splitting import splitting
from pyro_fed.audit.stillness import stillness
from pyro_fed.codes.finding import Finding

#: A check: from the evidence to findings, none if nothing speaks against the result.
Check = Callable[[Evidence], list[Finding]]


def draws(evidence: Evidence) -> list[Finding]:
    """Draws that are not the posterior's, by chains that begin at them, or else by missed modes: one finding, or none.

    Modes are looked for only if chains find nothing wrong: an error that chains find comes first. If `weighted_points`
    find the error, and chains do not, its cause may be a missed mode. Then modes are looked for first. Where an earlier
    stage of a plan has found several modes, both are reported: chains say nothing of mass elsewhere.
    """
    found = evidence.moments
    if len(evidence.record.modes) > 1:
        return findings_with_causes(evidence, [*missed_modes(evidence), *stillness(evidence)])
    if found is not None and found.by == "weights":
        return findings_with_causes(evidence, missed_modes(evidence) or stillness(evidence))
    return findings_with_causes(evidence, stillness(evidence) or missed_modes(evidence))


#: Whether the densities are those of a posterior, and exact enough. If one of these checks has a finding, the other
#: checks are not made: they would see its consequences, and advise another algorithm against them.
FIRST: tuple[Check, ...] = (splitting, precision)
CHECKS: tuple[Check, ...] = (draws, off_mode)


def of_density(evidence: Evidence) -> list[Finding]:
    """Why the densities are not the posterior's, or not exact enough, which no algorithm can mend: one finding each."""
    return [one for check in FIRST for one in check(evidence)]


def of_draws(evidence: Evidence) -> list[Finding]:
    """Why the draws are not those of a posterior whose densities are right, one finding a reason."""
    return [one for check in CHECKS for one in check(evidence)]


def found_right(evidence: Evidence) -> bool:
    """Whether all means and SDs are right by more than chance, by chains or weights, and no mode is missed."""
    found, weighed = evidence.moments, evidence.by_weights
    if found is None or found.stuck or bool(wrong_moments(found).any()):
        return False
    right = moments_verdict(found) is False or (
        weighed is not None and moments_verdict(weighed.where_told(found)) is False
    )
    return right and not missed_modes(evidence, strict=True)
