"""Cures for draws that are not the posterior's: the texts; `audit.moment_findings.cure` chooses among them."""

from __future__ import annotations

#: Cures by the kind of the draws.
BY_DRAWS = {
    "independent": "Weight them with FedAIS, or sample with FSGLD, DSVGD or NUTS",
    "agents": "With a server, FedAIS can weight the draws, and FSGLD, DSVGD or NUTS can sample",
    "particles": "Run more rounds, with more particles or longer steps, or use FSGLD or NUTS",
    "chains": "Run more rounds, with shorter steps, or use FedAIS or NUTS, which need no step size",
}
#: For an approximation by the curvature at the mode.
OF_LAPLACE = "It uses only the curvature at the mode: FedEP matches moments, FedAIS weights its draws"
#: For weights.
OF_WEIGHTS = "Give it more proposals or other surrogates, or sample with FSGLD, DSVGD or NUTS"
#: For averages of clients' draws.
OF_AVERAGED_DRAWS = (
    "Averages of the clients' draws follow the posterior only if each client's share of it is Gaussian; use FedEP or "
    "FedAIS"
)
#: For one pass over the clients.
OF_ONE_PASS = (
    "One pass visits each client once, and depends on their order: PVI goes on and corrects that, FedAIS weights its "
    "draws"
)
#: For trajectories.
OF_TRAJECTORIES = "Take more warm-up steps and samples, or a higher target_accept_prob"
#: For a density that jumps.
WEIGHTS_NEED_NO_SCORES = (
    "FedAIS weights its draws by the density and needs no scores: use it, with more proposals if they are too few"
)
#: For a plan that tries all algorithms.
LEFT_TO_TRY = (
    "What is left to try: NUTS on all rows together, more particles or proposals (pf.run), or the model in another form"
)
#: If weighted points have found mass beyond the draws.
MASS_BEYOND = (
    "The posterior has mass beyond the draws, in a long tail or in a slab beside a spike: DSVGD looks for it within "
    "the prior's range, and FedAIS(surrogates=DSVGD()) weights what it finds"
)
#: If the noise of privacy is in the draws.
LESS_NOISE = "The noise of privacy is part of that: a larger epsilon, more rows or more clients reduce it"
#: If clients failed.
ALL_CLIENTS = "Clients failed, and rounds went on without them: run it again, with all clients taking part"
#: If rounds ended too early.
MORE_ROUNDS = "It has not converged: run more rounds"
#: For a diagonal Gaussian and a small model.
FULL_COVARIANCE = "The approximation has no correlations (it is diagonal): use covariance='full'"


def replies_not_usable(why: str) -> str:
    """The cure if clients' replies could not be used."""
    return f"All clients replied, and rounds went on without replies that could not be used: {why}"


def proper_priors(sites: list[str], rows: int) -> str:
    """The cure if priors are improper and rows are few: more rounds and draws do not help."""
    return (
        f"The prior of {', '.join(map(repr, sites))} is improper, and with {rows} rows the posterior may be improper "
        "too, or have tails so long that it has no means and SDs: give these sites proper priors"
    )


def judge_by_predictions(parameters: int) -> str:
    """The cure if a Gaussian is diagonal and the model is too large for correlations."""
    return (
        f"The approximation is diagonal, of {parameters:,} parameters of a network or other large model: judge it by "
        "its predictions for rows held back (pf.metrics.test_metrics), or use FSGLD or DSVGD, which start from it"
    )
