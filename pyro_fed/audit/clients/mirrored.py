"""Clients whose rows say the opposite of the others': how many times as likely these are where parameters are mirrored.

    E_k = E_-k[p_k(-θ)] / E_-k[p_k(θ)]          θ ~ q_-k, the posterior of the others; p_k the likelihood of its rows

-θ is where labels are flipped, or a sign is turned. If the client's rows are of the same model as the others', the
denominator is their density and E_k has the mean one, however few they are, so that by Markov's inequality E_k is K / α
or more at any of K clients with a probability of α at most (an e-value: Vovk & Wang 2021, *E-values*). Distances of
sites in SDs have no such promise of few rows. Of ten clients of 8 rows one with flipped labels is told in 43 % of
cohorts, and by sites alone in 11 % (`benchmarks.faults.naming`).

q_-k is a Gaussian, and both means are those over draws of it: where one is made of few draws, as of a parameter that
the client alone knows of, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.audit.clients.influence import FEWEST, MOST_SAID, TOLD, by_sites
from pyro_fed.ops.gaussian import Gaussian

#: Chance that a cohort has an honest client that is told, at most.
CHANCE = 0.05
#: Draws of the others' posterior, and how many of them the mean of a client's likelihood has to be made of.
DRAWS, FEWEST_DRAWS = 256, 10


def mirrored(
    q: Gaussian, sites: Gaussian, rows: Tensor, log_lik: Callable[[int, Tensor], Tensor], generator: torch.Generator
) -> dict[int, float]:
    """The clients whose rows are too many times as likely under the opposite, and log E_k.

    Those are asked whose sites say so plainly: so large an E_k goes with three SDs and more. The one of most is divided
    out before the others are looked at again, whom it may have put on the other side; where its E_k is not known,
    nothing more is said.

    Args:
        q: the posterior.
        sites: (K,).
        rows: the clients' numbers of rows, (K,).
        log_lik: a client's log-likelihood (S,) at points (S, D).
        generator: of the draws.
    """
    least = math.log(max(1, int((rows > 0).sum())) / CHANCE)
    left, found = rows.nonzero().flatten().tolist(), dict[int, float]()
    fewest = max(FEWEST, len(left) // 2 + 1)
    while len(left) >= fewest and len(found) < MOST_SAID and bool(q.is_proper()):
        rest = type(sites)(sites.precision[left], sites.eta[left])
        asked = [left[i] for i in (by_sites(q, rest).opposed > TOLD).nonzero()[0]]
        ratios = {k: ratio for k in asked if (ratio := _ratio(_without(q, sites, k), k, log_lik, generator))}
        most = max(ratios, key=lambda k: ratios[k].value, default=None)
        if most is None or not ratios[most].known or ratios[most].value <= least:
            break
        found[most], q = ratios[most].value, _without(q, sites, most)
        left.remove(most)
    return found


class Ratio(NamedTuple):
    """log E_k, and whether both of its means are made of enough draws."""

    value: float
    known: bool


def _without(q: Gaussian, sites: Gaussian, k: int) -> Gaussian:
    """The posterior of the others."""
    return type(sites)(q.precision - sites.precision[k], q.eta - sites.eta[k])


def _ratio(
    others: Gaussian, k: int, log_lik: Callable[[int, Tensor], Tensor], generator: torch.Generator
) -> Ratio | None:
    """Of one client; None where the others have no posterior, or one of its means is no number."""
    if not bool(others.is_proper()):
        return None
    draws = others.even_sample(DRAWS, generator)
    as_said, opposite = (log_lik(k, z).nan_to_num(nan=-math.inf) for z in (draws, -draws))
    value = float(torch.logsumexp(opposite, 0) - torch.logsumexp(as_said, 0))
    return None if math.isnan(value) else Ratio(value, min(_worth(as_said), _worth(opposite)) >= FEWEST_DRAWS)


def _worth(log_lik: Tensor) -> float:
    """How many draws a mean of exp(log_lik) is made of."""
    return float(1 / torch.softmax(log_lik, 0).square().sum())
