"""What to do about draws that are not the posterior's, by what made them."""

from __future__ import annotations

from pyro_fed.algorithm.record import NONCENTRED
from pyro_fed.audit.evidence import Evidence
from pyro_fed.density.checks.funnels import with_hint
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import is_large
from pyro_fed.infer.sites.gaussian_sites import gaussian

_LAPLACE = "It sees the curvature at the mode alone: FedEP matches moments, FedAIS weighs its draws"
#: Cures of single algorithms.
OWN = {
    "ConsensusMC": (
        "Averages of the clients' draws are the posterior's where each client's share of it is Gaussian; take FedEP or "
        "FedAIS"
    ),
    "FedAIS": "Give it more proposals or other surrogates, or sample, by FSGLD, DSVGD or NUTS",
    "FedLaplace": _LAPLACE,
    "ConsensusLaplace": _LAPLACE,
    "StreamingVB": (
        "One pass sees each client once, by what those before it have left: PVI goes on to mend that, FedAIS weighs "
        "its draws"
    ),
    "NUTS": "Take more warm-up steps and samples, or a higher target_accept_prob",
}
#: Cures by what the draws are.
CURES = {
    "independent": "Weigh them by FedAIS, or sample, by FSGLD, DSVGD or NUTS",
    "agents": "A server's FedAIS weighs its draws; FSGLD, DSVGD and NUTS sample",
    "particles": "Run more rounds, with more particles or longer steps; FSGLD and NUTS sample without",
    "chains": "Run more rounds, with shorter steps; FedAIS and NUTS do without a step size",
}
#: Cure where a plan tries all of these.
LEFT = (
    "What is left to try: NUTS on all rows together, more particles or proposals (pf.run), or the model in another form"
)
#: Rows a parameter up to which flat priors may leave no posterior, or no moments: the mean and the scale of a Gaussian
#: have a posterior from three rows on, and the scale a variance from five on.
FEW_ROWS = 2.5
#: Cure where what weighted points have found is beyond the draws.
BEYOND = (
    "There is mass beyond them, in a long tail, or in a slab beside its spike: DSVGD looks for it as far as the prior "
    "goes, and FedAIS(surrogates=DSVGD()) weighs what it finds"
)


def cure(evidence: Evidence, beyond: bool = False) -> str:
    """The cure that fits, as a sentence without its full stop.

    Args:
        evidence: the result.
        beyond: whether the posterior has more spread than the draws, which chains from these do not see.
    """
    if "epsilon" in evidence.record.latest:
        return "Privacy's noise is part of that: a larger epsilon, more rows a client or more clients lessen it"
    if evidence.record.failed():
        return "Clients failed, and rounds went on without them: run it again, with all of them at work"
    if evidence.problem.layout.improper and evidence.problem.num_rows <= FEW_ROWS * evidence.problem.dim:
        return _of_improper(evidence.problem)
    if evidence.record.converged is False:
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
    """What is said, and the hint at the non-centred form, unless a plan tries that."""
    return said if NONCENTRED in evidence.record.planned else with_hint(said, evidence.problem)


def _of_improper(problem: Problem) -> str:
    """The cure where little but flat priors holds the tails: more rounds and draws do not help."""
    sites = ", ".join(f"'{name}'" for name in sorted(problem.layout.improper))
    return (
        f"The prior of {sites} is improper, and with {problem.num_rows} rows the posterior may be so too, or have "
        "tails so long that no means and SDs are told: give proper priors there"
    )


def _of_diagonal(problem: Problem) -> str:
    """The cure of a Gaussian without correlations: a full one, but not of a network, which has many modes and few rows.

    On the digits (160 parameters) a full covariance has an accuracy of 0.47, the diagonal one 0.63.
    """
    if not is_large(problem):
        return "The approximation is diagonal: take covariance='full'"
    return (
        f"The approximation is diagonal, of {problem.dim:,} parameters of a network or other large model: judge it by "
        "its predictions of rows held back (pf.metrics.test_metrics), or let FSGLD or DSVGD move on from it"
    )


def _diagonal(evidence: Evidence) -> bool:
    """Whether a Gaussian of more than one parameter has no correlations."""
    return {"precision", "eta"} <= evidence.shared.keys() and not gaussian(evidence.shared).dense
