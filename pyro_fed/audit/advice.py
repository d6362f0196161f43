"""What to do about draws that are not the posterior's: the cure that fits the algorithm, the model and the run."""

from __future__ import annotations

from pyro_fed.algorithm.record import NONCENTRED
from pyro_fed.audit.evidence import Evidence
from pyro_fed.density.checks.funnels import with_hint
from pyro_fed.density.checks.slopes import OF_STEPS, said_of
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import is_large
from pyro_fed.infer.sites.gaussian_sites import gaussian

_LAPLACE = "It uses only the curvature at the mode: FedEP matches moments, FedAIS weights its draws"
#: Cures of single algorithms.
OWN = {
    "ConsensusMC": (
        "Averages of the clients' draws follow the posterior only if each client's share of it is Gaussian; use FedEP "
        "or FedAIS"
    ),
    "FedAIS": "Give it more proposals or other surrogates, or sample with FSGLD, DSVGD or NUTS",
    "FedLaplace": _LAPLACE,
    "ConsensusLaplace": _LAPLACE,
    "StreamingVB": (
        "One pass visits each client once, and depends on their order: PVI goes on and corrects that, FedAIS weights "
        "its draws"
    ),
    "NUTS": "Take more warm-up steps and samples, or a higher target_accept_prob",
}
#: Cures by what the draws are.
CURES = {
    "independent": "Weight them with FedAIS, or sample with FSGLD, DSVGD or NUTS",
    "agents": "With a server, FedAIS can weight the draws, and FSGLD, DSVGD or NUTS can sample",
    "particles": "Run more rounds, with more particles or longer steps, or use FSGLD or NUTS",
    "chains": "Run more rounds, with shorter steps, or use FedAIS or NUTS, which need no step size",
}
#: Cure where the density jumps.
WEIGHED = "FedAIS weights its draws by the density and needs no scores: use it, with more proposals if they are too few"
#: Cure where a plan tries all of these.
LEFT = (
    "What is left to try: NUTS on all rows together, more particles or proposals (pf.run), or the model in another form"
)
#: With at most so many rows for each parameter, improper priors may leave no posterior, or one without moments: under
#: flat priors, the mean and scale of a Gaussian have a posterior from three rows on, and the scale has a variance from
#: five on.
FEW_ROWS = 2.5
#: Cure where weighted points have found mass beyond the draws.
BEYOND = (
    "The posterior has mass beyond the draws, in a long tail or in a slab beside a spike: DSVGD looks for it within "
    "the prior's range, and FedAIS(surrogates=DSVGD()) weights what it finds"
)


def cure(evidence: Evidence, beyond: bool = False) -> str:
    """The cure that fits, as a sentence without its full stop.

    Args:
        evidence: the result.
        beyond: whether weighted points have found that the posterior is wider than the draws.
    """
    if evidence.record.has_private_noise:
        return "The noise of privacy is part of that: a larger epsilon, more rows or more clients reduce it"
    if why := evidence.record.refused():
        return f"All clients replied, and rounds went on without replies that could not be used: {why}"
    if evidence.record.clients_failed():
        return "Clients failed, and rounds went on without them: run it again, with all clients taking part"
    if evidence.problem.layout.improper and evidence.problem.num_rows <= FEW_ROWS * evidence.problem.dim:
        return _of_improper(evidence.problem)
    if evidence.stepped:
        said = said_of(evidence.stepped)
        return f"{said[0].upper() + said[1:]}. {WEIGHED}. {OF_STEPS}"
    if evidence.record.converged is False and not evidence.record.blocked:
        return _hinted("It has not converged: run more rounds", evidence)
    if _diagonal(evidence):
        return _of_diagonal(evidence.problem)
    if "DSVGD" in evidence.record.planned:
        return _hinted(LEFT, evidence)
    if beyond:
        return _hinted(BEYOND, evidence)
    other = OWN.get(type(evidence.algorithm).__name__, CURES[evidence.algorithm.draws_are])
    return _hinted(other, evidence)


def _hinted(said: str, evidence: Evidence) -> str:
    """The cure, with a hint at the non-centred form where that may help, unless a plan tries that form itself."""
    return said if NONCENTRED in evidence.record.planned else with_hint(said, evidence.problem)


def _of_improper(problem: Problem) -> str:
    """The cure where the priors are improper and rows are few: more rounds and draws do not help."""
    sites = ", ".join(f"'{name}'" for name in sorted(problem.layout.improper))
    return (
        f"The prior of {sites} is improper, and with {problem.num_rows} rows the posterior may be improper too, or "
        "have tails so long that it has no means and SDs: give these sites proper priors"
    )


def _of_diagonal(problem: Problem) -> str:
    """The cure for a Gaussian without correlations: a full covariance, except for a network.

    A network has many modes and few rows. On the digits (160 parameters) a full covariance has an accuracy of 0.47, a
    diagonal one of 0.63.
    """
    if not is_large(problem):
        return "The approximation has no correlations (it is diagonal): use covariance='full'"
    return (
        f"The approximation is diagonal, of {problem.dim:,} parameters of a network or other large model: judge it by "
        "its predictions for rows held back (pf.metrics.test_metrics), or use FSGLD or DSVGD, which start from it"
    )


def _diagonal(evidence: Evidence) -> bool:
    """Whether a Gaussian of more than one parameter has no correlations."""
    return {"precision", "eta"} <= evidence.shared.keys() and not gaussian(evidence.shared).dense
