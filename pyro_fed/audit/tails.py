"""What few chains do not reach: tails, slabs and modes where a result has no draws, by weighted points (`census`).

Chains that begin at a result's draws go into a tail that these lack slowly, and look settled before they have: for a
zero-inflated count they saw an SD of 1.03 ± 0.05 times the result's where it is 1.33. In few dimensions weights of
points that begin elsewhere have no such memory. They say nothing of a number whose variance few points make. What they
find wrong counts before what chains find right.
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

#: Points that a number's variance has to be made of.
FEWEST = 50
#: Standard errors of the SD of as many exact draws that fit into what matters, where a number's tail lets it be told;
#: where but one does, the SD is told that is so many times these larger than the draws', a tail that they lack.
SIGMAS = 3


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
    if not bool((kurtosis(quantities(draws.double())) > LONG).any()) or (found := census()) is None:
        return []
    weights, points = found.weights, quantities(target.model(found.white))
    away = (points - weights @ points).square()
    longest = ((weights @ away.square()) / (weights @ away).square()).nan_to_num(nan=0.0, posinf=0.0)
    number = int(longest.argmax())
    if not float(longest[number]) > 1 + len(draws) * (2 * math.log(SD_MATTERS)) ** 2:
        return []
    name = quoted(quantities.labels[number])
    return [
        f"a few draws far out make the SD of {name}, and its mean: the posterior's tail is so long (a kurtosis of "
        f"{float(longest[number]):.2g}) that {len(draws)} draws do not tell them, right as they may be. Tell its "
        "median and quantiles: az.summary(idata, stat_focus='median')"
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
