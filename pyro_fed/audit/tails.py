"""What an approximation lacks against its posterior, by importance ratios: tails, or a mean or an SD that is off.

Draws z_s of an approximation q have importance ratios p(z_s)/q(z_s) to the posterior. The shape k of the
generalised Pareto distribution of the largest ones says how much heavier the posterior's tails are; above
`LARGEST_PARETO_K` nothing can be said of means under the posterior (Yao, Vehtari, Simpson & Gelman 2018, *Yes, but did
it work?*). Ratios that are nearly equal have a shape too, and it says nothing. Below the limit the ratios w_s say how
far the means are off, Σ w_s z_s, and the SDs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed

#: Draws for the tail of an approximation.
FEWEST_DRAWS, MOST_DRAWS = 100, 1000
#: Ratios worth more than this share of equal ones, (Σ w)² / (S Σ w²), leave an approximation as it is.
LARGEST_SHARE = 0.8
#: Ratios worth at least as many equal ones say how far means are off.
FEWEST_WORTH = 100
#: Means further away than this many SDs are flagged, by the ratios as by a reference.
LARGEST_MEAN_ERROR = 0.5
#: SDs that the ratios put further away than this factor are flagged.
LARGEST_SD_FACTOR = 4 / 3
#: With more parameters any Gaussian has ratios that differ wildly, and there is nothing to be learnt from them.
LARGEST_DIM_FOR_RATIOS = 100
#: How many of the largest ratios say where that tail is.
FARTHEST = 5


def tails(evidence: Evidence) -> list[str]:
    """The tails of an approximation whose log density is known, once it is that of all rows.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none.
    """
    if not evidence.problem.local_dim and not evidence.record.converged:
        return []
    density = evidence.log_density
    return [] if density is None else tail_warnings(evidence.problem, evidence.points, density)


def tail_warnings(problem: Problem, draws: Tensor, log_density: Tensor) -> list[str]:
    """Tails that an approximation lacks, or else a mean or an SD that is off, and the site where it is.

    Args:
        problem: the posterior.
        draws: (S, D), of the approximation.
        log_density: (S,), its log density there, up to a constant.

    Returns:
        One sentence, or none; none too of fewer than `FEWEST_DRAWS` draws or more than `LARGEST_DIM_FOR_RATIOS`
        parameters.
    """
    if len(draws) < FEWEST_DRAWS or draws.shape[1] > LARGEST_DIM_FOR_RATIOS:
        return []
    at = torch.linspace(0, len(draws) - 1, min(MOST_DRAWS, len(draws))).long()
    z = draws[at].to(problem.dtype)
    pieces = in_chunks(z, problem.evaluations)
    ratios = torch.cat([problem.log_prior(piece) + problem.log_lik(piece) for piece in pieces]) - log_density[at]
    within = ratios.isfinite()
    ratios, u = ratios[within], ((z - z.mean(0)) / z.std(0))[within].double()
    found = smoothed(ratios)
    if found.effective > LARGEST_SHARE * len(z):
        return []
    if found.pareto_k > LARGEST_PARETO_K:
        site = _site_of(problem, int(u[ratios.argsort()[-FARTHEST:]].abs().mean(0).argmax()))
        return [
            f"the posterior has tails that this approximation lacks: Pareto k is {found.pareto_k:.2f} (above "
            f"{LARGEST_PARETO_K} its means are not to be trusted far out), most of all in '{site}'. Use FedAIS, "
            "which weighs its draws, or sample, by FSGLD, DSVGD or NUTS"
        ]
    return _moment_warnings(problem, u, found.weights) if found.effective >= FEWEST_WORTH else []


def _moment_warnings(problem: Problem, u: Tensor, weights: Tensor) -> list[str]:
    """The mean, or else the SD, that weights put farthest from what standardised draws (S, D) have."""
    mean = weights @ u
    ratio = (weights @ (u - mean).square()).sqrt()
    away, factor = mean.abs(), torch.maximum(ratio, 1 / ratio)
    if float(away.max()) >= LARGEST_MEAN_ERROR:
        number = int(away.argmax())
        what = f"the mean of '{_site_of(problem, number)}' {float(away[number]):.2g} SDs away from"
    elif float(factor.max()) >= LARGEST_SD_FACTOR:
        number = int(factor.argmax())
        what = f"the SD of '{_site_of(problem, number)}' {float(ratio[number]):.2g} times"
    else:
        return []
    cure = "Use FedAIS, which weighs its draws, or sample, by FSGLD, DSVGD or NUTS"
    return [f"importance sampling finds {what} this approximation's. {cure}"]


def _site_of(problem: Problem, number: int) -> str:
    """The site that an entry of the flat vector belongs to."""
    return next(name for name, site in problem.sites.items() if site.start <= number < site.start + site.size)
