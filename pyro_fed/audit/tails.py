"""What few chains do not reach (tails, slabs and modes where a result has no draws), by weighted points (`census`).

Chains that begin at a result's draws move only slowly into a tail that the draws lack, and look settled before they are
there. For a zero-inflated count they saw an SD of 1.03 ± 0.05 times the result's where it is 1.33. Weights of points
that begin elsewhere have no such memory, and in few dimensions they can be trusted. They say nothing of a number whose
variance is made of few points. What they find wrong counts before what chains find right.

What the model computes of its latents is judged by the tails of its own draws. It is right if the latents are, but its
variance may not exist where the latents have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_fed.audit.census import Weighed
from pyro_fed.audit.chains.motion import LONG, Moments, kurtosis, told_by_tails
from pyro_fed.audit.quantities import Quantities, quoted
from pyro_fed.audit.target import Target
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.density.problem import Problem
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.importance import LARGEST_PARETO_K, smoothed

#: The fewest points that a number's variance has to be made of.
FEWEST = 50
#: An SD is judged if so many standard errors (of the SD of as many exact draws) fit into what matters. If only one
#: fits, it is judged where it is larger than the draws' by so many of these: then they lack a tail.
SIGMAS = 3
#: The fewest draws that show the shape of a tail: a tenth of them are in it, and its k has a standard error of 0.2.
FEWEST_OF_A_TAIL = 800
#: Draws at which it is measured how fast a density falls, and how far out, in distances between its quartiles.
POWERS_AT, FAR_OUT = 16, (300.0, 3000.0)
#: A density that falls like this power of |x|, or slower, has no variance: three, and what other terms add so far out.
NO_VARIANCE = 3.05
#: What to tell of a number without a variance that draws tell.
QUANTILES = "Tell its median and quantiles: az.summary(idata, stat_focus='median')"


def beyond(target: Target, quantities: Quantities, draws: Tensor, found: Weighed) -> Moments:
    """The posterior's moments by weights, against the result's.

    Args:
        target: the posterior, whitened by the draws.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), the model's coordinates.
        found: weighted points.
    """
    points = quantities(target.model(found.white))
    return weighted(found.weights, points, quantities(draws.double()), target.problem.dim)


def few_draws_tell(
    target: Target, quantities: Quantities, draws: Tensor, census: Callable[[], Weighed | None]
) -> list[str]:
    """A number whose tail is so long that so many draws, right as they may be, do not tell its SD.

    Args:
        target: the posterior, whitened by the draws.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), the model's coordinates, as many as are given.
        census: gives weighted points; it is asked where a tail is long alone.

    Returns:
        One sentence, or none: where no number has a long tail, or points do not tell it.
    """
    long = kurtosis(quantities(draws.double())) > LONG
    if not bool(long.any()):
        return []
    if none := _without_variance(target, draws, long):
        return [
            f"{quoted(quantities.labels[none[0]])} has no variance: its density falls no faster than |x|^-3 far out. "
            f"Its mean and SD depend on a few draws. {QUANTILES}"
        ]
    if (found := census()) is None:
        return []
    weights, points = found.weights, quantities(target.model(found.white))
    away = (points - weights @ points).square()
    longest = ((weights @ away.square()) / (weights @ away).square()).nan_to_num(nan=0.0, posinf=0.0)
    untold = longest > 1 + len(draws) * (2 * math.log(SD_MATTERS)) ** 2
    untold |= long & (longest > LONG) & torch.tensor([_tail(weights * terms) > LARGEST_PARETO_K for terms in away.T])
    if not bool(untold.any()):
        return []
    number = int(torch.where(untold, longest, 0.0).argmax())
    name = quoted(quantities.labels[number])
    return [
        f"a few draws far out make the SD of {name}, and its mean: the posterior's tail is so long (a kurtosis of "
        f"{float(longest[number]):.2g}) that {len(draws)} draws do not determine them, even if all draws are right. "
        f"{QUANTILES}"
    ]


def _without_variance(target: Target, draws: Tensor, long: Tensor) -> list[int]:
    """Entries of the flat vector whose density falls by a power of at most three, the others being where a draw is.

    Draws do not show that: of an algorithm that samples Cauchy's tail as far as its weights or steps go, the shape of
    their own tail was 0.2 where it is one.

    Args:
        target: the posterior, whitened by the draws.
        draws: (S, D), the model's coordinates.
        long: which numbers' draws have a long tail (F,).
    """
    z = draws[evenly(len(draws), POWERS_AT)].double()
    found = []
    for number in long[: z.shape[1]].nonzero()[:, 0].tolist():
        column = draws[:, number].double()
        low, middle, high = column.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        powers = []
        for side in (-1, 1):
            at = []
            for far in FAR_OUT:
                moved = z.clone()
                moved[:, number] = middle + side * far * (high - low)
                at.append(target.values(target.white(moved)))
            powers.append(
                float(((at[0] - at[1]) / math.log(FAR_OUT[1] / FAR_OUT[0])).nan_to_num(nan=math.inf).median())
            )
        if min(powers) < NO_VARIANCE:
            found.append(number)
    return found


def _tail(terms: Tensor) -> float:
    """Pareto's k of terms (N,) of a sum."""
    return smoothed(terms.clamp_min(torch.finfo(terms.dtype).tiny).log()).pareto_k


def reported_without_variance(problem: Problem, draws: Tensor) -> list[str]:
    """A deterministic site whose draws show by their tail that it has no variance, as a ratio of two normals has none.

    Args:
        problem: the model.
        draws: (S, D), the model's coordinates.

    Returns:
        One sentence, on the longest tail, or none: where draws are few, or depend on rows.
    """
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    if not names or len(draws) < FEWEST_OF_A_TAIL:
        return []
    found = problem.constrain(draws.to(problem.dtype), problem.fewest_rows)
    longest, said = LARGEST_PARETO_K, ""
    for name in names:
        for number, values in enumerate(found[name].reshape(len(draws), -1).double().T):
            away = (values - values.median()).abs()
            if not bool(away.isfinite().all()) or not float(away.median()) > 0:
                continue
            k = smoothed(away.clamp_min(torch.finfo(away.dtype).tiny).log()).pareto_k
            if k > longest:
                longest, said = k, quoted(problem.entry_of(problem.reported[name], number))
    if not said:
        return []
    return [
        f"{said} seems to have no variance: the tail of its draws is that of a Pareto distribution with k = "
        f"{longest:.1f}, which has none from 0.5 on. Its mean and SD depend on a few draws. {QUANTILES}"
    ]


def weighted(weights: Tensor, points: Tensor, draws: Tensor, dim: int) -> Moments:
    """Moments of weighted points against those of draws; no error of a number that is none somewhere, or unknown.

    Args:
        weights: (N,), which sum to one.
        points: (N, F).
        draws: (S, F).
        dim: how many of the numbers are unconstrained, the first.
    """
    centre, scale = draws.mean(0), draws.std(0)
    usable = points.isfinite().all(0) & centre.isfinite() & (scale > 0) & scale.isfinite()
    y = torch.where(usable, (points - centre) / scale, 0.0)
    mean = weights @ y
    away = (y - mean).square()
    variance = weights @ away
    squares = weights.square()
    usable &= variance.square() > FEWEST * (squares @ away.square())  # (Σ w a)² / Σ (w a)² points make it
    variance = torch.where(usable, variance, 1.0)
    left, come = kurtosis(draws), (weights @ away.square()) / variance.square()
    # On its site's own scale a number may have a tail that no draws tell; how long the posterior's is is known here.
    own = torch.arange(len(come)) >= dim
    mean_error = (squares @ away).sqrt() / variance.sqrt()
    log_error = (squares @ (away - variance).square()).sqrt() / (2 * variance)
    chance = ((come - 1) / len(draws)).sqrt() / 2  # of as many exact draws
    lacking = variance.log() / 2 > SIGMAS * torch.hypot(chance, log_error)
    enough = (SIGMAS * chance <= math.log(SD_MATTERS)) | ((chance <= math.log(SD_MATTERS)) & lacking)
    usable &= torch.where(own, enough, told_by_tails(left, come, dim))

    def judged(figure: Tensor) -> Tensor:
        return torch.where(usable, figure, 0.0)

    return Moments(
        judged(mean / variance.sqrt()), judged(mean_error), judged(variance.log() / 2), judged(log_error), by="weights"
    )
