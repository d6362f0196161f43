"""Log densities that stand in place of Pyro's own while a model runs, and counts for which float32 does not suffice.

**Large shapes.** Where the data have no more dispersion than a Poisson's, a negative binomial's concentration a goes to
infinity, and its log density is the difference of terms near a log a: at a = 10^16 all digits are lost. With

    δ(a, n) = log Γ(a + n) - log Γ(a) - n log a = (a + n - 1/2) log(1 + n / a) - n + s(a + n) - s(a)

and Stirling's series s(a) = 1 / (12 a) - 1 / (360 a³) + ... nothing cancels; so for mixtures of binomials and
multinomials, and Student's t. Densities of small shapes are the distributions' own, to the bit.

**Missing entries.** `NanMaskedNormal` and `NanMaskedMultivariateNormal` leave them out by indexing, of which `vmap` has
no rule. Here a missing entry has the value of its mean and, among several, a variance of one and no covariance. Pyro's
`safe_log`, which its hidden Markov models use, is a function of autograd that `torch.func` cannot take; here it is the
logarithm with its derivative 1 / max(x, eps), of any order.

**Counts.** A count y under a rate λ has the log density y log λ - λ - log y!, whose terms, rounded to float32, are
noise of eps y log y nats a row, which differs at every λ. With a dispersion φ of its own it is a difference of two
numbers of φ log φ that are nearly equal where φ is large, which the data seldom exclude.
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
#: Shapes from this power of the machine's precision on are large: 50 in single precision, 8,000 in double.
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
    """Where the terms of a density that cancel are large."""
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


HALF_LOG_2PI = math.log(2 * math.pi) / 2


def log_normal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedNormal.log_prob`: zero where the value, which broadcasts with the batch shape, is missing."""
    known = value.isfinite()
    scaled = (torch.where(known, value, normal.loc) - normal.loc) / normal.scale
    return torch.where(known, -scaled.square() / 2 - normal.scale.log() - HALF_LOG_2PI, 0.0)


def log_marginal_of_known(normal: Any, value: Tensor) -> Tensor:
    """`NanMaskedMultivariateNormal.log_prob` of values (..., n): the density of each row's known entries."""
    known = value.isfinite()
    apart = torch.where(known, value, normal.loc) - normal.loc
    both = known.unsqueeze(-1) & known.unsqueeze(-2)
    covariance = torch.where(both, normal.covariance_matrix, torch.diag_embed((~known).to(apart.dtype)))
    factor = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(factor, apart.unsqueeze(-1), upper=False).squeeze(-1)
    volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    densities: Tensor = -scaled.square().sum(-1) / 2 - volume - known.sum(-1) * HALF_LOG_2PI
    return densities


#: Log densities in place of distributions' own.
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
    """A context in which log densities, and Pyro's `safe_log`, can be mapped, and their digits do not cancel."""
    standing, patched = MAPPABLE | ACCURATE, cast(Any, special)
    originals = {kind: kind.log_prob for kind in standing}
    safe_log = patched._SafeLog
    for kind, log_prob in standing.items():
        kind.log_prob = log_prob
    patched._SafeLog = SafeLog
    try:
        yield
    finally:
        patched._SafeLog = safe_log
        for kind, original in originals.items():
            kind.log_prob = original


logger = logging.getLogger(__name__)

#: Distributions with a dispersion, whose log density is a difference of such terms.
DISPERSED = (
    *(dist.GammaPoisson, dist.BetaBinomial, dist.DirichletMultinomial),
    *(dist.NegativeBinomial, dist.ZeroInflatedNegativeBinomial),
)
#: Distributions of counts whose terms are as large as the counts make them.
COUNTED = (dist.Poisson, dist.ZeroInflatedPoisson, dist.Binomial, dist.Multinomial)


def asks_for_double(trace: Any, times: float = 1.0) -> bool:
    """Whether counts are computed in float64 by default, from a trace of all rows, or of one `times`-th of them."""
    sites = ((name, msg) for name, msg in trace.nodes.items() if msg["type"] == "sample" and msg["is_observed"])
    said = next(filter(None, (_why(name, msg, times) for name, msg in sites)), "")
    if said:
        logger.info("computed in float64: %s; dtype=torch.float32 has it all the same", said)
    return bool(said)


def _why(name: str, msg: Message, times: float) -> str:
    """Why float32 does not suffice for an observed site; empty if it does."""
    fn, value = innermost(msg["fn"]), msg["value"]
    if isinstance(fn, DISPERSED):
        return f"the log density of '{name}', a {type(fn).__name__}, is a difference of large numbers"
    if not isinstance(fn, COUNTED) or not isinstance(value, Tensor) or not value.numel():
        return ""
    most = float(value.double().nan_to_num().abs().max())
    noise = torch.finfo(torch.float32).eps * most * math.log(max(most, math.e)) * (times * value.numel()) ** 0.5
    return f"'{name}' has counts of {most:.2g}, whose log density float32 rounds" if noise > SAME_NATS else ""
