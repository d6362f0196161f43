"""Log densities that replace Pyro's own during a run, and the choice of float64 for counts.

**Large shapes.** For data without overdispersion the concentration a of a negative binomial tends to infinity, and its
log density is a difference of terms near a log a: at a = 10^16 all digits are lost. With

    δ(a, n) = log Γ(a + n) - log Γ(a) - n log a = (a + n - 1/2) log(1 + n / a) - n + s(a + n) - s(a)

and Stirling's series s(a) = 1 / (12 a) - 1 / (360 a³) + ... no terms cancel. The same holds for mixtures of binomials
and multinomials, and for Student's t. For small shapes the distributions' own densities are used, to the bit.

**Missing entries.** `NanMaskedNormal` and `NanMaskedMultivariateNormal` leave them out by indexing, for which `vmap`
has no rule. Here a missing entry has the value of its mean, and in vectors a variance of one and no covariance. Pyro's
`safe_log` in hidden Markov models is an autograd function that `torch.func` does not support; here it is the logarithm
with derivative 1 / max(x, eps), of any order.

**Counts.** A count y under a rate λ has the log density y log λ - λ - log y!. Rounding its terms to float32 adds noise
of eps y log y nats a row, which differs at every λ. With a dispersion φ the log density is a difference of two numbers
of order φ log φ, which are nearly equal for large φ, and data seldom exclude a large φ.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro.ops import special
from torch import Tensor

from pyro_fed.conventions.limits import SAME_NATS
from pyro_fed.density.running.trace_sites import Message, innermost

LogProb = Callable[[Any, Tensor], Tensor]

#: Coefficients of Stirling's series in a⁻¹, a⁻³, ...
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
#: Power of the machine's precision above which shapes are large: 50 in single precision, 8,000 in double.
LARGE_SHAPE_POWER = -0.25


def log_rising(shape: Tensor, count: Tensor) -> Tensor:
    """δ(a, n) of positive shapes a and counts n ≥ 0, broadcast."""
    shape, count = torch.broadcast_tensors(shape, count)
    large = is_large(shape)
    a, n = torch.where(large, shape, 1.0 / torch.finfo(shape.dtype).eps), count
    series = (a + n - 0.5) * torch.log1p(n / a) - n + _stirling(a + n) - _stirling(a)
    b = torch.where(large, 1.0, shape)
    return torch.where(large, series, torch.lgamma(b + n) - torch.lgamma(b) - n * b.log())


def is_large(shape: Tensor) -> Tensor:
    """Whether each shape is so large that terms of the density cancel."""
    large: Tensor = shape > torch.finfo(shape.dtype).eps ** LARGE_SHAPE_POWER
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
    a, log_chance = fn.total_count, torch.nn.functional.logsigmoid
    coefficient = log_rising(a, value) - torch.lgamma(value + 1)
    log_prob: Tensor = coefficient + a * log_chance(-fn.logits) + value * (a.log() + log_chance(fn.logits))
    return log_prob


def beta_binomial(fn: Any, value: Tensor) -> Tensor:
    """`BetaBinomial.log_prob` in concentrations a and b."""
    a, b, n = fn.concentration1, fn.concentration0, torch.as_tensor(fn.total_count).to(value)
    coefficient = torch.lgamma(n + 1) - torch.lgamma(value + 1) - torch.lgamma(n - value + 1)
    log_chances = value * (a.log() - (a + b).log()) + (n - value) * (b.log() - (a + b).log())
    log_prob: Tensor = (
        coefficient + log_chances + log_rising(a, value) + log_rising(b, n - value) - log_rising(a + b, n)
    )
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
    """A distribution's own log density for small shapes, and the accurate one for large shapes."""

    def log_prob(fn: Any, value: Tensor) -> Tensor:
        return torch.where(is_large(shape_of(fn)), accurate(fn, value), own(fn, value))

    return log_prob


#: Accurate log densities for large shapes, by distribution.
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


HALF_LOG_2PI = math.log(2 * math.pi) / 2


def log_normal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedNormal.log_prob`: zero for missing values; the value broadcasts with the batch shape."""
    known = value.isfinite()
    scaled = (torch.where(known, value, normal.loc) - normal.loc) / normal.scale
    return torch.where(known, -scaled.square() / 2 - normal.scale.log() - HALF_LOG_2PI, 0.0)


def log_marginal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedMultivariateNormal.log_prob` of values (..., n): the density of each row's known entries."""
    known = value.isfinite()
    residual = torch.where(known, value, normal.loc) - normal.loc
    both_known = known.unsqueeze(-1) & known.unsqueeze(-2)
    covariance = torch.where(both_known, normal.covariance_matrix, torch.diag_embed((~known).to(residual.dtype)))
    factor = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False).squeeze(-1)
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    densities: Tensor = -scaled.square().sum(-1) / 2 - volume - known.sum(-1) * HALF_LOG_2PI
    return densities


#: Log densities that `vmap` can map, by distribution.
MAPPABLE: dict[Any, LogProb] = {
    dist.NanMaskedNormal: log_normal_of_known,
    dist.NanMaskedMultivariateNormal: log_marginal_of_known,
}


class SafeLog:
    """Replacement of `pyro.ops.special._SafeLog`."""

    @staticmethod
    def apply(x: Tensor) -> Tensor:
        """The logarithm of non-negative values, with a finite derivative at zero."""
        eps = torch.finfo(x.dtype).eps
        large = x > eps
        below = x.detach().log() + (x - x.detach()) / eps
        return torch.where(large, torch.where(large, x, 1.0).log(), below)


@contextmanager
def own_log_probs() -> Iterator[None]:
    """A context in which log densities and Pyro's `safe_log` can be mapped, and terms do not cancel."""
    replacements, patched = MAPPABLE | ACCURATE, cast(Any, special)
    originals = {kind: kind.log_prob for kind in replacements}
    safe_log = patched._SafeLog
    for kind, log_prob in replacements.items():
        kind.log_prob = log_prob
    patched._SafeLog = SafeLog
    try:
        yield
    finally:
        patched._SafeLog = safe_log
        for kind, original in originals.items():
            kind.log_prob = original


logger = logging.getLogger(__name__)

#: Distributions with a dispersion, whose log density is a difference of large numbers.
DISPERSED = (
    *(dist.GammaPoisson, dist.BetaBinomial, dist.DirichletMultinomial),
    *(dist.NegativeBinomial, dist.ZeroInflatedNegativeBinomial),
)
#: Distributions of counts whose terms grow with the counts.
COUNTED = (dist.Poisson, dist.ZeroInflatedPoisson, dist.Binomial, dist.Multinomial)


def asks_for_double(trace: Any, times: float = 1.0) -> bool:
    """Whether counts are computed in float64 by default, from a trace of all rows, or of a fraction 1 / `times`."""
    sites = ((name, msg) for name, msg in trace.nodes.items() if msg["type"] == "sample" and msg["is_observed"])
    reason = next(filter(None, (_reason_for_double(name, msg, times) for name, msg in sites)), "")
    if reason:
        logger.info("computed in float64: %s; dtype=torch.float32 overrides this", reason)
    return bool(reason)


def _reason_for_double(name: str, msg: Message, times: float) -> str:
    """The reason why float32 does not suffice for an observed site; empty if it does."""
    fn, value = innermost(msg["fn"]), msg["value"]
    if isinstance(fn, DISPERSED):
        return f"the log density of '{name}', a {type(fn).__name__}, is a difference of large numbers"
    if not isinstance(fn, COUNTED) or not isinstance(value, Tensor) or not value.numel():
        return ""
    largest = float(value.double().nan_to_num().abs().max())
    noise = torch.finfo(torch.float32).eps * largest * math.log(max(largest, math.e)) * (times * value.numel()) ** 0.5
    return f"'{name}' has counts of {largest:.2g}, whose log density float32 rounds" if noise > SAME_NATS else ""
