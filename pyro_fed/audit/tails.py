"""What few chains do not reach: tails where a result has no draws, by importance weights of points wider than it.

    w_s = p(z_s) / g(z_s),    g = 1/3 Σ_a t_5(m, a² S),  a = 1, 1.5, 3,    m, S the result's mean and covariance

Chains that begin at a result's draws go into a tail that these lack slowly, and look settled before they have: for a
zero-inflated count they saw an SD of 1.03 ± 0.05 times the result's where it is 1.33. In few dimensions weights of wide
points have no such memory. Where they are worth few points, or have a long tail themselves, as for a banana or a
funnel, they say nothing; nor of a number whose variance few points make. What they find wrong counts; what they find
right does not, as points have an end too.

Source: Owen & Zhou (2000), *Safe and effective importance sampling*, for mixtures; Vehtari et al. (2024) for k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.audit.chains.motion import LONG, Moments, kurtosis, told_by_tails, wrong
from pyro_fed.audit.quantities import Quantities, quoted
from pyro_fed.audit.target import LARGE_BATCH, Target
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.ops.importance import smoothed
from pyro_fed.ops.student_mixtures import Mixture

#: Points: as many as are computed together.
POINTS = LARGE_BATCH
#: a, and degrees of freedom of each.
WIDTHS, FREEDOM = (1.0, 1.5, 3.0), 5
#: Parameters from which on such weights are worth too little to be looked at.
LARGEST_DIM = 8
#: Share of the points that weights have to be worth to say something, and their longest tail.
WORTH, LONGEST_TAIL = 0.25, 0.5
#: Points that a number's variance has to be made of.
FEWEST = 50
#: Standard errors of the SD of as many exact draws that fit into what matters, where a number's tail lets it be told.
SIGMAS = 3


def beyond(target: Target, quantities: Quantities, draws: Tensor, generator: torch.Generator) -> Moments | None:
    """The posterior's moments by weights, where they find the result wrong; None where not, or they cannot tell.

    Args:
        target: the posterior, whitened by the draws.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), the model's coordinates.
        generator: source of randomness.
    """
    found = _wide(target, quantities, generator)
    if found is None:
        return None
    moments = weighted(*found, quantities(draws.double()), target.problem.dim)
    return moments if bool(wrong(moments).any()) else None


def few_draws_tell(target: Target, quantities: Quantities, draws: Tensor, generator: torch.Generator) -> list[str]:
    """A number whose tail is so long that so many draws, right as they may be, do not tell its SD.

    Args:
        target: the posterior, whitened by the draws.
        quantities: the numbers whose moments are wanted.
        draws: (S, D), the model's coordinates, as many as are given.
        generator: source of randomness.

    Returns:
        One sentence, or none: where no number has a long tail, or points do not tell it.
    """
    if not bool((kurtosis(quantities(draws.double())) > LONG).any()):
        return []
    found = _wide(target, quantities, generator)
    if found is None:
        return []
    weights, points = found
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


def _wide(target: Target, quantities: Quantities, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
    """Weights (N,) and numbers (N, F) of points wider than the draws; None where the weights are worth too little."""
    if target.problem.looped or target.problem.dim > LARGEST_DIM:
        return None
    eye = torch.eye(target.problem.dim, dtype=torch.float64)
    shares = torch.full((len(WIDTHS),), 1 / len(WIDTHS), dtype=torch.float64)
    wide = Mixture(shares, eye.new_zeros(len(WIDTHS), len(eye)), torch.stack([width * eye for width in WIDTHS]))
    white = wide.sample(POINTS, FREEDOM, generator)
    weights = smoothed(target.values(white) - wide.log_density(white, FREEDOM))
    if weights.effective < WORTH * POINTS or weights.pareto_k > LONGEST_TAIL:
        return None
    return weights.weights, quantities(target.model(white))


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
    enough = come <= 1 + len(draws) * (2 * math.log(SD_MATTERS) / SIGMAS) ** 2
    usable &= torch.where(own, enough, told_by_tails(left, come, dim))
    mean_error = (squares @ away).sqrt() / variance.sqrt()
    log_error = (squares @ (away - variance).square()).sqrt() / (2 * variance)

    def judged(figure: Tensor) -> Tensor:
        return torch.where(usable, figure, 0.0)

    return Moments(
        judged(mean / variance.sqrt()), judged(mean_error), judged(variance.log() / 2), judged(log_error), by="weights"
    )
