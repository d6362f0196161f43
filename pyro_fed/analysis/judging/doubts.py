"""Reasons not to trust a result: what a statistician would check before reading it.

**How often the prior counts.** If draws z_s come from the posterior p_0(z) Π p_k(z), integration by parts
gives for every coordinate i (mean m, SD σ, Stein's identity)

    σ_i E[a s⁰_i + b s¹_i] = 0,      E[(a s⁰_i + b s¹_i)(z_i - m_i)] = -1,       a = b = 1

with s⁰ the gradient of the log prior and s¹ that of the log-likelihood. If instead the result has counted
the prior a times and the likelihood b times, the identities hold with those a, b. They are 2 D linear
equations in two unknowns, solved by weighted least squares; a standard error comes from leaving out blocks
of draws. The *prior count* is a/b, which an overall error of the spread leaves alone: 1 is right, K is a
prior counted at each of K clients, 0 is one that was lost. Where the prior says little, its count cannot be
told, and the standard error says so.

**Tails.** Draws z_s of an approximation q have importance ratios p(z_s)/q(z_s) to the posterior. The shape k of the
generalised Pareto distribution of the largest ones says how much heavier the posterior's tails are; above 0.7 nothing
can be said of means under the posterior (Yao, Vehtari, Simpson & Gelman 2018, *Yes, but did it work?*). Ratios that are
nearly equal have a shape too, and it says nothing. Below 0.7 the ratios w_s say how far the means are off, Σ w_s z_s,
and the SDs.

**Spread.** SDs far below those of the Laplace approximation mean a collapsed variance. The reverse means
nothing: at the mode of a hierarchical model the Laplace approximation is itself too narrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.conventions import seeding
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

#: Blocks of draws that are left out in turn for standard errors.
BLOCKS = 20
#: Equations whose noise is below this share of the largest weigh no more than if it were that: it may be none at all.
LEAST_NOISE = 1e-3
#: A prior counted more than this too often or too seldom is flagged...
WRONG_BY = 0.5
#: ...where it is also this many standard errors away from one.
STANDARD_ERRORS = 4.0
#: SDs outside this multiple of the reference's, or the Laplace approximation's, are flagged.
SD_RANGE = (0.5, 2.0)
#: Means further away from the reference's than this many of its SDs are flagged.
LARGEST_MEAN_ERROR = 0.5
#: Draws for the tail of an approximation.
FEWEST_DRAWS, MOST_DRAWS = 100, 1000
#: Ratios worth more than this share of equal ones, (Σ w)² / (S Σ w²), leave an approximation as it is.
LARGEST_SHARE = 0.8
#: Ratios worth at least as many equal ones say how far means are off.
FEWEST_WORTH = 100
#: SDs that the ratios put further away than this factor are flagged.
LARGEST_SD_FACTOR = 4 / 3
#: With more parameters any Gaussian has ratios that differ wildly, and there is nothing to be learnt from them.
LARGEST_DIM_FOR_RATIOS = 100
#: How many of the largest ratios say where that tail is.
FARTHEST = 5


class PriorCount(NamedTuple):
    """How often the prior counts, a/b, and its standard error."""

    value: float
    error: float

    @property
    def wrong(self) -> bool:
        """Whether it is away from one by more than chance."""
        return abs(self.value - 1) > max(WRONG_BY, STANDARD_ERRORS * self.error)


def prior_count(draws: Tensor, prior_score: Tensor, likelihood_score: Tensor) -> PriorCount:
    """How often the draws count the prior, see the module's header.

    Args:
        draws: (S, D), unconstrained.
        prior_score: (S, D), gradients of the log prior.
        likelihood_score: (S, D), gradients of the log-likelihood.
    """
    z = draws.double().numpy()
    mean, sd = z.mean(0), z.std(0)
    u = (z - mean) / sd
    scaled = [score.double().numpy() * sd for score in (prior_score, likelihood_score)]
    terms = np.stack([np.concatenate([score, score * u], 1) for score in scaled])  # (2, S, 2D)
    right = np.concatenate([np.zeros(z.shape[1]), -np.ones(z.shape[1])])
    noise = (terms.sum(0)).std(0)
    weight = 1 / np.maximum(noise, LEAST_NOISE * noise.max())
    blocks = np.array_split(np.arange(len(z)), min(BLOCKS, len(z)))
    sums, sizes = np.stack([terms[:, block].sum(1) for block in blocks]), np.array([len(b) for b in blocks])

    def solve(total: np.ndarray, size: int) -> float:
        (a, b), *_ = np.linalg.lstsq((total / size * weight).T, right * weight, rcond=None)
        return float(a / b)

    whole = solve(sums.sum(0), len(z))
    left_out = [solve(sums.sum(0) - one, len(z) - size) for one, size in zip(sums, sizes, strict=True)]
    n = len(blocks)
    return PriorCount(whole, float(np.sqrt((n - 1) / n * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))))


def laplace_sds(federation: Any, problem: Any) -> Tensor | None:
    """SDs of the Laplace approximation of the pooled posterior, (D,); None where no mode was found."""
    algorithm, data = FedLaplace(), federation.pooled_data()
    shared, local = algorithm.init(problem, 1, seeding.torch_generator(0, seeding.SERVER), None)
    figures: list[dict[str, float]] = []
    for _ in range(algorithm.default_rounds(1)):
        shared = algorithm.prepare(problem, shared)
        message, local, _ = algorithm.local_step(
            problem, algorithm.download(shared, torch.tensor([0])), local, data, ()
        )
        after = algorithm.combine(shared, message, torch.ones(1))
        figures.append(algorithm.monitor(shared, after))
        shared = after
        if algorithm.converged(figures):
            return gaussian(shared).to_full().moments()[1].diagonal().sqrt()
    return None


def spread_warnings(draws: Tensor, sds: Tensor) -> list[str]:
    """Variances that have collapsed against those of the Laplace approximation.

    Args:
        draws: (S, D), unconstrained.
        sds: (D,).
    """
    typical = float((draws.double().std(0, correction=0) / sds).median())
    if typical >= SD_RANGE[0]:
        return []
    return [f"variance collapse: SDs are {typical:.2g} of the Laplace approximation's (median over parameters)"]


def tail_warnings(problem: Problem, draws: Tensor, log_density: Tensor) -> list[str]:
    """Tails that an approximation lacks, or else a mean or an SD that is off, and the site where it is.

    Args:
        problem: the posterior.
        draws: (S, D), of the approximation.
        log_density: (S,), its log density there, up to a constant.
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


def reference_warnings(row: dict[str, Any]) -> list[str]:
    """What a row of the comparison says against the reference."""
    found = []
    if row["mean_error"] > LARGEST_MEAN_ERROR:
        found.append(f"a mean is {row['mean_error']:.2g} reference SDs off")
    low, high = SD_RANGE
    if row["sd_ratio_min"] < low:
        found.append(f"an SD is {row['sd_ratio_min']:.2g} of the reference's")
    if row["sd_ratio_max"] > high:
        found.append(f"an SD is {row['sd_ratio_max']:.2g} times the reference's")
    return found


def density_warnings(count: PriorCount) -> list[str]:
    """What the density says without a reference."""
    if not count.wrong:
        return []
    return [f"the prior counts {count.value:.1f} ± {count.error:.1f} times instead of once"]
