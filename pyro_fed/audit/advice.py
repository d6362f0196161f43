"""The cure for draws that are not the posterior's, which fits the algorithm, the model and the run."""

from __future__ import annotations

from pyro_fed.algorithm.record import NONCENTRED
from pyro_fed.audit.evidence import Evidence
from pyro_fed.codes import cures
from pyro_fed.density.checks.slopes import OF_STEPS, said_of
from pyro_fed.density.forms import with_hint
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import is_large
from pyro_fed.infer.sites.gaussian_sites import gaussian

#: With at most this many rows for each parameter, improper priors may leave no posterior, or one without moments: under
#: flat priors, the mean and scale of a Gaussian have a posterior from three rows on, and the scale has a variance from
#: five on.
FEW_ROWS = 2.5


def cure(evidence: Evidence, beyond: bool = False) -> str:
    """The cure that fits, as a sentence without its full stop.

    `beyond` is whether weighted points show that the posterior is wider than the draws.
    """
    if evidence.record.has_private_noise:
        return cures.LESS_NOISE
    if why := evidence.record.refused():
        return cures.replies_not_usable(why)
    if evidence.record.clients_failed():
        return cures.ALL_CLIENTS
    if evidence.problem.layout.improper and evidence.problem.num_rows <= FEW_ROWS * evidence.problem.dim:
        return cures.proper_priors(sorted(evidence.problem.layout.improper), evidence.problem.num_rows)
    if evidence.jump_lines:
        said = said_of(evidence.jump_lines)
        return f"{said[0].upper() + said[1:]}. {cures.WEIGHTS_NEED_NO_SCORES}. {OF_STEPS}"
    if evidence.record.converged is False and evidence.record.rounds_help:
        return _cure_with_hint(cures.MORE_ROUNDS, evidence)
    if _diagonal(evidence):
        return _of_diagonal(evidence.problem)
    if "DSVGD" in evidence.record.planned:
        return _cure_with_hint(cures.LEFT_TO_TRY, evidence)
    if beyond:
        return _cure_with_hint(cures.MASS_BEYOND, evidence)
    return _cure_with_hint(evidence.algorithm.remedy or cures.BY_DRAWS[evidence.algorithm.draws_are], evidence)


def _cure_with_hint(said: str, evidence: Evidence) -> str:
    """The cure, with a hint at the non-centred form if that may help, unless a plan tries that form itself."""
    return said if NONCENTRED in evidence.record.planned else with_hint(said, evidence.problem)


def _of_diagonal(problem: Problem) -> str:
    """The cure for a Gaussian without correlations: a full covariance, except for a network.

    A network has many modes and few rows. On the digits (160 parameters) a full covariance has an accuracy of 0.47, a
    diagonal one of 0.63.
    """
    return cures.judge_by_predictions(problem.dim) if is_large(problem) else cures.FULL_COVARIANCE


def _diagonal(evidence: Evidence) -> bool:
    """Whether a Gaussian of more than one parameter has no correlations."""
    return {"precision", "eta"} <= evidence.shared.keys() and not gaussian(evidence.shared).dense
