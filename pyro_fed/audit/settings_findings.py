"""Settings that give another result than most users expect: another posterior, or too few draws.

The mean of n independent draws has a standard error of n^(-1/2) SDs. Let z be the number of standard errors that the
worst of D means exceeds with probability `CHANCE` (`margin`). Then n = (z / `MATTERS`)² draws keep all means within
what matters with probability 1 - `CHANCE`. SDs need fewer draws.
"""

from __future__ import annotations

import math

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.audit.chains.moments import margin
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS

#: The kinds of draws (`Algorithm.draws_are`) that come from a distribution, which can give any number of them.
COUNTED_DRAWS = ("independent", "agents")


def settings_findings(algorithm: Algorithm, draws: Tensor) -> list[Finding]:
    """Possible misunderstandings of a result because of its settings, one finding each; draws (chain, draw, D)."""
    temperature = float(getattr(algorithm, "temperature", 1.0))
    found = list[Finding]()
    if temperature != 1.0:
        found.append(sentences.tempered_posterior(temperature=temperature))
    count, needed = draws.shape[0] * draws.shape[1], draws_needed(draws.shape[2])
    if algorithm.draws_are in COUNTED_DRAWS and count < needed:
        found.append(sentences.too_few_draws(draws=count, needed=needed))
    return found


def draws_needed(dim: int) -> int:
    """The number of draws that determine the means of `dim` parameters, see the module's header."""
    return math.ceil((margin(dim) / MATTERS) ** 2)
