"""What was asked for and is not what it will be taken for: another posterior, or too few draws of one.

Of n independent draws a mean is off by n^(-1/2) SDs. By chance the worst of D means is off by what matters once in
`CHANCE` times where that is 1/z of it, for the z of so many numbers: n = (z / `MATTERS`)². SDs ask for fewer.
"""

from __future__ import annotations

import math

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.audit.chains.motion import margin
from pyro_fed.conventions.limits import MATTERS

#: What the draws of distributions are, which can give any number of them.
COUNTED = ("independent", "agents")


def asked(algorithm: Algorithm, draws: Tensor) -> list[str]:
    """What a result is not, because of how it was asked for.

    Args:
        algorithm: what was run.
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
    """Draws from which on means of so many parameters are told, see the module's header."""
    return math.ceil((margin(dim) / MATTERS) ** 2)
