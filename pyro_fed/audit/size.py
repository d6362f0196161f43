"""Models that are too large for the audit: its chains would cost more than most runs do."""

from __future__ import annotations

from pyro_fed.audit.chains.hmc import SCORES
from pyro_fed.audit.chains.motion import FEWEST_CHAINS
from pyro_fed.audit.chains.sequential import LOOKS
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import cost_of
from pyro_fed.density.traits import LARGE_DIM

#: The audit is not made if the shortest one would take more operations than this, some seconds.
MOST_OPERATIONS = 5_000_000_000
#: A score costs as much as so many densities.
SCORE = 3


def not_audited(problem: Problem) -> list[Finding]:
    """Why a result is not audited, and what is therefore unchecked; nothing where it can be audited.

    Args:
        problem: the model's densities.
    """
    if problem.dim <= LARGE_DIM:
        return []
    operations = cost_of(problem).operations * SCORE * FEWEST_CHAINS * LOOKS[1] * SCORES
    if operations <= MOST_OPERATIONS:
        return []
    return [sentences.not_audited_by_size(parameters=problem.dim, operations=operations)]
