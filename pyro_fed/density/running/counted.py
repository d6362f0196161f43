"""Counts that float32 cannot represent: large ones, and those under distributions with a dispersion of their own.

A count y under a rate λ has the log density y log λ - λ - log y!, whose terms are y log y: rounded to float32, to parts
of 6e-8, they are noise of eps y log y nats a row, which differs at every λ. Under a Gamma mixture of Poissons, a Beta
mixture of binomials or a Dirichlet mixture of multinomials it is log Γ(y + φ) - log Γ(φ), two numbers of φ log φ that
are nearly equal where φ is large, which the data seldom exclude: the difference is rounding then, and a run follows it.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fed.density.running.trace_sites import Message, innermost

logger = logging.getLogger(__name__)

#: Distributions with a dispersion, whose log density is a difference of such terms.
DISPERSED = (
    *(dist.GammaPoisson, dist.BetaBinomial, dist.DirichletMultinomial),
    *(dist.NegativeBinomial, dist.ZeroInflatedNegativeBinomial),
)
#: Distributions of counts whose terms are as large as the counts make them.
COUNTED = (dist.Poisson, dist.ZeroInflatedPoisson, dist.Binomial, dist.Multinomial)
#: Nats of noise in the log-likelihood of all rows that are let pass in float32.
LARGEST_NOISE = 0.05


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
    return f"'{name}' has counts of {most:.2g}, whose log density float32 rounds" if noise > LARGEST_NOISE else ""
