"""Settings that give something else than most users expect: another posterior, or too few draws.

The mean of n independent draws has a standard error of n^(-1/2) SDs. Let z be the number of standard errors that the
worst of D means exceeds with probability `CHANCE` (`margin`). Then n = (z / `MATTERS`)² draws keep all means within
what matters with probability 1 - `CHANCE`. SDs need fewer draws.
"""

from __future__ import annotations

import math

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.audit.chains.motion import margin
from pyro_fed.conventions.limits import MATTERS

#: The kinds of draws (`Algorithm.draws_are`) that come from a distribution, which can give any number of them.
COUNTED = ("independent", "agents")


def asked(algorithm: Algorithm, draws: Tensor) -> list[str]:
    """What may be misunderstood about a result because of the settings that it was asked for with.

    Args:
        algorithm: the algorithm of the run.
        draws: (chain, draw, D).

    Returns:
        One sentence a reason.
    """
    temperature = float(getattr(algorithm, "temperature", 1.0))
    found = []
    if temperature != 1.0:
        found.append(
            f"temperature={temperature:g} asks for another posterior than the model's: the prior times the likelihood "
            f"to the power 1/{temperature:g}. Its SDs are not those of Bayes' rule, which is temperature=1"
        )
    count, needed = draws.shape[0] * draws.shape[1], enough(draws.shape[2])
    if algorithm.draws_are in COUNTED and count < needed:
        found.append(
            f"{count} draws are too few: by chance alone their means are off by {count**-0.5:.2f} SDs, and SDs by "
            f"{100 * (2 * count) ** -0.5:.0f} %. Take num_draws of {needed} or more"
        )
    return found


def enough(dim: int) -> int:
    """The number of draws that determine the means of `dim` parameters, see the module's header."""
    return math.ceil((margin(dim) / MATTERS) ** 2)
