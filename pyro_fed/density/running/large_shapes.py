"""Log densities of counts and of Student's t whose dispersion goes to zero, in terms that do not cancel.

Where the data have no more dispersion than a Poisson's, a negative binomial's concentration a goes to infinity, and its
log density is the difference of terms near a log a: at a = 10^16 all digits are lost, and a search follows rounding.
With

    δ(a, n) = log Γ(a + n) - log Γ(a) - n log a = (a + n - 1/2) log(1 + n / a) - n + s(a + n) - s(a)

and Stirling's series s(a) = 1 / (12 a) - 1 / (360 a³) + ... nothing cancels. Densities of small shapes are the
distributions' own, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

LogProb = Callable[[Any, Tensor], Tensor]

#: Coefficients of Stirling's series in a⁻¹, a⁻³, ...
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
#: Shapes from this power of the machine's precision on are large: 50 in single precision, 8,000 in double.
LARGE_POWER = -0.25


def log_rising(shape: Tensor, count: Tensor) -> Tensor:
    """δ(a, n) of positive shapes a and counts n ≥ 0, broadcast."""
    shape, count = torch.broadcast_tensors(shape, count)
    large = is_large(shape)
    a, n = torch.where(large, shape, 1.0 / torch.finfo(shape.dtype).eps), count
    series = (a + n - 0.5) * torch.log1p(n / a) - n + _stirling(a + n) - _stirling(a)
    b = torch.where(large, 1.0, shape)
    return torch.where(large, series, torch.lgamma(b + n) - torch.lgamma(b) - n * b.log())


def is_large(shape: Tensor) -> Tensor:
    """Where the terms of a density that cancel are large."""
    large: Tensor = shape > torch.finfo(shape.dtype).eps ** LARGE_POWER
    return large


def _stirling(a: Tensor) -> Tensor:
    inverse = 1 / a
    total = torch.zeros_like(a)
    for coefficient in reversed(STIRLING):
        total = coefficient + inverse.square() * total
    return inverse * total


def gamma_poisson(fn: Any, value: Tensor) -> Tensor:
    """`GammaPoisson.log_prob` in concentration a and rate b."""
    a, b = fn.concentration, fn.rate
    log_prob: Tensor = (
        log_rising(a, value) - torch.lgamma(value + 1) - a * torch.log1p(1 / b) + value * (a.log() - torch.log1p(b))
    )
    return log_prob


def negative_binomial(fn: Any, value: Tensor) -> Tensor:
    """`NegativeBinomial.log_prob` in total count a and logits."""
    a, chance = fn.total_count, torch.nn.functional.logsigmoid
    found = log_rising(a, value) - torch.lgamma(value + 1)
    log_prob: Tensor = found + a * chance(-fn.logits) + value * (a.log() + chance(fn.logits))
    return log_prob


def beta_binomial(fn: Any, value: Tensor) -> Tensor:
    """`BetaBinomial.log_prob` in concentrations a and b."""
    a, b, n = fn.concentration1, fn.concentration0, torch.as_tensor(fn.total_count).to(value)
    ways = torch.lgamma(n + 1) - torch.lgamma(value + 1) - torch.lgamma(n - value + 1)
    chances = value * (a.log() - (a + b).log()) + (n - value) * (b.log() - (a + b).log())
    log_prob: Tensor = ways + chances + log_rising(a, value) + log_rising(b, n - value) - log_rising(a + b, n)
    return log_prob


def dirichlet_multinomial(fn: Any, value: Tensor) -> Tensor:
    """`DirichletMultinomial.log_prob` in concentrations a."""
    a, n = fn.concentration, value.sum(-1)
    total = a.sum(-1, keepdim=True)
    each = log_rising(a, value) + value * (a.log() - total.log()) - torch.lgamma(value + 1)
    log_prob: Tensor = torch.lgamma(n + 1) + each.sum(-1) - log_rising(total.squeeze(-1), n)
    return log_prob


def student_t(fn: Any, value: Tensor) -> Tensor:
    """`StudentT.log_prob` in degrees of freedom a."""
    a, y = fn.df, (value - fn.loc) / fn.scale
    half = torch.full_like(a, 0.5)
    level = log_rising(a / 2, half) - 0.5 * torch.log(torch.full_like(a, 2 * torch.pi)) - fn.scale.log()
    log_prob: Tensor = level - (a + 1) / 2 * torch.log1p(y.square() / a)
    return log_prob


def _where_large(shape_of: Callable[[Any], Tensor], own: LogProb, accurate: LogProb) -> LogProb:
    """A distribution's own log density, and the accurate one where its shape is large."""

    def log_prob(fn: Any, value: Tensor) -> Tensor:
        return torch.where(is_large(shape_of(fn)), accurate(fn, value), own(fn, value))

    return log_prob


#: Log densities in place of distributions' own.
ACCURATE: dict[Any, LogProb] = {
    kind: _where_large(shape_of, kind.log_prob, accurate)
    for kind, shape_of, accurate in (
        (dist.GammaPoisson, lambda fn: fn.concentration, gamma_poisson),
        (torch.distributions.NegativeBinomial, lambda fn: fn.total_count, negative_binomial),
        (dist.BetaBinomial, lambda fn: fn.concentration1 + fn.concentration0, beta_binomial),
        (dist.DirichletMultinomial, lambda fn: fn.concentration.sum(-1), dirichlet_multinomial),
        (torch.distributions.StudentT, lambda fn: fn.df, student_t),
    )
}
