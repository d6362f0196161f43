"""Models that are too large for the audit: its chains would cost more than most runs do."""

from __future__ import annotations

from pyro_fed.audit.chains.hmc import SCORES
from pyro_fed.audit.chains.sequential import LOOKS
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import cost_of
from pyro_fed.policy.audit import unaffordable_operations


def compares_clients(problem: Problem) -> bool:
    """Whether clients' sites are computed at the draws: these take each row's curvature."""
    return not problem.traits.large() and not not_audited(problem)


def not_audited(problem: Problem) -> list[Finding]:
    """Why a result is not audited, and what is therefore unchecked; none if it can be audited."""
    many = unaffordable_operations(problem.traits, lambda: cost_of(problem).operations, SCORES, LOOKS[1])
    return [sentences.not_audited_by_size(parameters=problem.dim, operations=many)] if many else []
