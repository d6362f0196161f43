"""Models that are too large for the audit: its chains would cost more than the run."""

from __future__ import annotations

from pyro_fed.audit.chains.hmc import SCORES
from pyro_fed.audit.chains.motion import FEWEST, FIRST
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import LARGE_DIM, cost_of

#: Operations of the shortest audit, scores at three times a density, from which on it is not made: some seconds.
MOST_OPERATIONS = 5_000_000_000
#: Densities in a score.
SCORE = 3


def not_audited(problem: Problem) -> str:
    """Why a result is not audited, and what nobody has checked; empty where it can be.

    Args:
        problem: the model's densities.
    """
    if problem.dim <= LARGE_DIM:
        return ""
    operations = cost_of(problem).operations * SCORE * FEWEST * FIRST * SCORES
    if operations <= MOST_OPERATIONS:
        return ""
    return (
        f"not audited: with {problem.dim:,} parameters exact chains from the draws would take {operations:.1g} "
        "operations at least. Whether means and SDs are the posterior's, whether modes are missed, what rounding costs "
        "and whether the clients add up at these draws was not checked; measure predictions on test data, by "
        "pf.metrics.test_metrics"
    )
