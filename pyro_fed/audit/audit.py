"""Every check of the audit, in the order in which a run makes them; a new check is a module and an entry here.

The mean of n independent draws has a standard error of n^(-1/2) SDs. Let z (`margin`) be the number of standard errors
that the worst of D means exceeds with probability `TEST_LEVEL`. Then n = (z / `MATTERS`)² draws keep the errors of all
means below `MATTERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.audit.densities import precision, splitting
from pyro_fed.audit.evidence import DRAWN_ANEW, Evidence, Unknown
from pyro_fed.audit.hmc import SCORES
from pyro_fed.audit.modes.angles import findings_with_causes
from pyro_fed.audit.modes.missed_modes import missed_modes
from pyro_fed.audit.modes.point import point_findings
from pyro_fed.audit.moment_findings import missed_sd_findings, wrong_moment_findings
from pyro_fed.audit.moments import margin, moments_verdict, wrong_moments
from pyro_fed.audit.motion import LOOKS
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, MIN_EFFECTIVE_DRAWS
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import cost_of
from pyro_fed.federation.federation import Federation
from pyro_fed.policy.audit import unaffordable_operations


def settings_findings(algorithm: Algorithm, draws: Tensor) -> list[Finding]:
    """Findings on settings that make draws (chain, draw, D) easy to misread."""
    temperature = float(getattr(algorithm, "temperature", 1.0))
    findings = list[Finding]()
    if temperature != 1.0:
        findings.append(sentences.tempered_posterior(temperature=temperature))
    count, needed = draws.shape[0] * draws.shape[1], math.ceil((margin(draws.shape[2]) / MATTERS) ** 2)
    if algorithm.draws_are in DRAWN_ANEW and count < needed:
        findings.append(sentences.too_few_draws(draws=count, needed=needed))
    return findings


def not_audited(problem: Problem) -> list[Finding]:
    """One finding on why a result is not audited, and what is therefore unchecked; none if it can be audited."""
    many = unaffordable_operations(problem.traits, lambda: cost_of(problem).operations, SCORES, LOOKS[1])
    return [sentences.not_audited_by_size(parameters=problem.dim, operations=many)] if many else []


#: A check: from the evidence to findings, none if nothing speaks against the result.
Check = Callable[[Evidence], list[Finding]]


def wrong_draw_findings(evidence: Evidence) -> list[Finding]:
    """One finding on wrong draws, by chains that begin at them, by weighted points or by missed modes; or none."""
    moments = evidence.moments
    if len(evidence.record.modes) > 1:  # an earlier stage found several modes: chains do not reach the others
        wrong = [*missed_modes(evidence), *wrong_moment_findings(evidence)]
    elif (
        moments is not None and moments.by == "weights"
    ):  # the cause of an error that chains do not find may be a missed mode
        wrong = missed_modes(evidence) or wrong_moment_findings(evidence)
    else:
        wrong = wrong_moment_findings(evidence) or missed_modes(evidence)
    return findings_with_causes(evidence, wrong) or missed_sd_findings(evidence)


#: Checks of whether the densities are those of a posterior, and are exact enough. If one of them has a finding,
#: `CHECKS` are not run: they would report its consequences, and advise another algorithm, which does not help.
FIRST: tuple[Check, ...] = (splitting, precision)
CHECKS: tuple[Check, ...] = (wrong_draw_findings, point_findings)


def density_findings(evidence: Evidence) -> list[Finding]:
    """Findings on densities that are not the posterior's, or not exact enough. No algorithm mends these."""
    return [one for check in FIRST for one in check(evidence)]


def draw_findings(evidence: Evidence) -> list[Finding]:
    """Findings on draws that are not the posterior's, given that the densities are right."""
    return [one for check in CHECKS for one in check(evidence)]


def is_confirmed_right(evidence: Evidence) -> bool:
    """Whether chains or weights show all means and SDs to be right by more than chance, and no mode is missed."""
    moments, by_weights = evidence.moments, evidence.by_weights
    if moments is None or moments.stuck or bool(wrong_moments(moments).any()):
        return False
    estimates = [moments] if by_weights is None else [moments, by_weights.completed_by(moments)]
    right = any(moments_verdict(one) is False for one in estimates)
    return right and not missed_modes(evidence, strict=True)


def audit_draws(federation: Federation, draws: Tensor, draws_are: str, problem: Problem | None = None) -> list[Finding]:
    """Why draws should not be trusted, by the checks that need only the draws and the model.

    Args:
        federation: the model and its rows.
        draws: (chain, draw, D), unconstrained and finite.
        draws_are: "particles", "independent", "agents" or "chains".
        problem: the model's densities, as a run compiles them; by default the federation's, which are not compiled.

    Returns:
        One finding for each reason; none for fewer than `MIN_EFFECTIVE_DRAWS` independent draws, which are not judged.

    Example:
        >>> audit_draws(fed, draws, "chains")
    """
    if draws_are in DRAWN_ANEW and draws.shape[0] * draws.shape[1] < MIN_EFFECTIVE_DRAWS:
        return []
    algorithm = cast("Algorithm", Unknown(draws_are))  # the check reads only these of an algorithm's attributes
    record = Record(federation.client_names)
    with torch.no_grad():
        return wrong_moment_findings(
            Evidence(algorithm, federation, problem or federation.problem, {}, draws, record, seed=0)
        )
