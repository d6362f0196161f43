"""Clients whose rows contradict the others', by the likelihood of the rows under mirrored parameters.

    E_k = E_-k[p_k(-θ)] / E_-k[p_k(θ)]          θ ~ q_-k, the posterior of the others; p_k the likelihood of k's rows

Mirrored parameters, -θ, describe rows whose labels are flipped, or in which a sign is turned. If client k's rows come
from the same model as the others', the denominator is the rows' predictive density, and E_k has mean one, even for very
few rows. By Markov's inequality the probability that E_k is K / α or more for any of K honest clients is at most α,
`MAX_FALSE_NAMING`. (E_k is an e-value: Vovk & Wang 2021, *E-values: calibration, combination and applications*.)
Distances between sites have no such guarantee. Among ten clients of 8 rows, one with flipped labels is named in 43 % of
cohorts, and by sites alone in 11 % (`benchmarks.faults.naming`).

q_-k is a Gaussian, and both expectations are means over draws of it. A client is not judged if one of the two means
depends on few draws, as for a parameter that only this client informs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT
from pyro_fed.audit.influence import by_sites
from pyro_fed.codes.sentences import MAX_DESCRIBED
from pyro_fed.conventions.limits import MIN_DRAWS, STANDARD_ERRORS
from pyro_fed.ops.gaussian import Gaussian

#: α, the largest probability that an honest client of a cohort is named.
MAX_FALSE_NAMING = 0.05
#: Number of draws of the others' posterior.
NUM_DRAWS_OF_OTHERS = 256


def mirrored_clients(
    q: Gaussian, sites: Gaussian, rows: Tensor, log_lik: Callable[[int, Tensor], Tensor], generator: torch.Generator
) -> dict[int, float]:
    """log E_k of the clients with E_k above K / α, by the client's number."""
    # Only clients whose sites are opposed to the others' can have so large an E_k: for others it is not computed.
    min_log_ratio = math.log(max(1, int((rows > 0).sum())) / MAX_FALSE_NAMING)
    remaining, log_ratios = rows.nonzero().flatten().tolist(), dict[int, float]()
    min_remaining = max(MIN_COHORT, len(remaining) // 2 + 1)
    while len(remaining) >= min_remaining and len(log_ratios) < MAX_DESCRIBED and bool(q.is_proper()):
        rest = type(sites)(sites.precision[remaining], sites.eta[remaining])
        opposed = [remaining[i] for i in (by_sites(q, rest).opposed > STANDARD_ERRORS).nonzero()[0]]
        ratios = {k: _log_ratio(_without(q, sites, k), k, log_lik, generator) for k in opposed}
        mirrored = max(ratios, key=lambda k: ratios[k].value, default=None)
        if mirrored is None or not ratios[mirrored].known or ratios[mirrored].value <= min_log_ratio:
            break
        log_ratios[mirrored], q = ratios[mirrored].value, _without(q, sites, mirrored)
        remaining.remove(mirrored)
    return log_ratios


class LogRatio(NamedTuple):
    """log E_k, and whether both of its means have enough effective draws."""

    value: float
    known: bool


def _without(q: Gaussian, sites: Gaussian, k: int) -> Gaussian:
    """q_-k, the posterior of the clients other than k."""
    return type(sites)(q.precision - sites.precision[k], q.eta - sites.eta[k])


def _log_ratio(
    others: Gaussian, k: int, log_lik: Callable[[int, Tensor], Tensor], generator: torch.Generator
) -> LogRatio:
    """Client k's log E_k; -inf if the others have no proper posterior, or one of the means is NaN."""
    if not bool(others.is_proper()):
        return LogRatio(-math.inf, False)
    draws = others.even_sample(NUM_DRAWS_OF_OTHERS, generator)
    plain, mirrored = (log_lik(k, z).nan_to_num(nan=-math.inf) for z in (draws, -draws))
    value = float(torch.logsumexp(mirrored, 0) - torch.logsumexp(plain, 0))
    if math.isnan(value):
        return LogRatio(-math.inf, False)
    # The effective sample sizes of both means are 1 / Σ w_s², with weights w_s ∝ p_k.
    effective = (float(1 / torch.softmax(each, 0).square().sum()) for each in (plain, mirrored))
    return LogRatio(value, min(effective) >= MIN_DRAWS)
