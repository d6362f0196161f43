"""A wide part of the proposals, which bounds the weights if a posterior is wider than the sites and the prior.

A likelihood that is flat in a direction has no Gaussian site there, and none with the tails of `ops.student` either: a
count's overdispersion on the logarithm's scale, a ridge. The draws of prior times sites are then narrower than the
posterior, and weights cannot correct for regions without draws. So a share ε of proposals is wider than q, in q's
whitened coordinates

    t(z) = Student's t of ν degrees of freedom and scale σ,     s = log t - log N(0, I),

    π_0 = N(0, I) exp b,   b = log((1 - ε) + ε exp s),
    π_1 = N(0, I) exp d',  d' = log((1 - ε) exp d + ε Z exp s),    Z = E_N exp d,

so that weights of the posterior p against π_1 are at most p / (ε t): bounded if p falls faster than a power. If p_0 t
is right the share multiplies the cost of an effective draw by 1 / (1 - ε).

Source: Hesterberg (1995), *Weighted average importance sampling and defensive mixture distributions*; Owen and Zhou
(2000), *Safe and effective importance sampling*.

Letters: ε `SHARE`, σ `WIDTH`, ν `FREEDOM`, logarithm of Z `level`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.annealing import Difference, Ends, Slope

#: Share of the proposals: as many as those of prior times sites, whose effective number at most halves.
SHARE = 0.5
#: Their scale in SDs of q, which covers a variance that is too small by half; and degrees of freedom: the smallest
#: whole number for which t has a variance, for a posterior that has one.
WIDTH, FREEDOM = 1.5, 3.0


class Defence(NamedTuple):
    """The mixtures with the wide part, which `level`, the logarithm of Z, determines."""

    level: float

    def draws(self, white: Tensor, generator: torch.Generator) -> Tensor:
        """Draws of π_0 from as many of N(0, I), (S, D): the last share of them is widened."""
        count = int(SHARE * len(white))
        shape = torch.full((count, 1), FREEDOM / 2, dtype=torch.float64)
        chi = 2 * torch._standard_gamma(shape, generator=generator).to(white)
        wide = WIDTH * white[len(white) - count :] * (FREEDOM / chi).sqrt()
        return torch.cat([white[: len(white) - count], wide])

    def ends(self, difference: Difference) -> Ends:
        """d' and b with their gradients, from d and its gradient."""

        def mixed(white: Tensor) -> tuple[Slope, Slope]:
            (value, slope), (wide, along) = difference(white), _wider(white)
            over, near, far = _log_mixture(value, wide, self.level)
            under, _, at_base = _log_mixture(torch.zeros_like(value), wide, 0.0)
            along = along.unsqueeze(-1)
            return (over, near * slope + far * along * white), (under, at_base * along * white)

        return mixed


def _wider(white: Tensor) -> tuple[Tensor, Tensor]:
    """s, and the factor of its gradient to z, each (S,)."""
    dim, squared = white.shape[1], white.square().sum(-1)
    weight, reach = FREEDOM + dim, FREEDOM * WIDTH**2
    constant = math.lgamma(weight / 2) - math.lgamma(FREEDOM / 2) - dim / 2 * math.log(reach / 2)
    value = constant - weight / 2 * torch.log1p(squared / reach) + squared / 2
    return value, 1 - weight / (reach + squared)


def _log_mixture(narrow: Tensor, wide: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithm of (1 - ε) exp d + ε Z exp s, (S,), and the shares of d and s in it, (S, 1)."""
    logs = torch.stack([narrow + math.log(1 - SHARE), wide + level + math.log(SHARE)])
    near, far = logs.softmax(0).unsqueeze(-1)
    return logs.logsumexp(0), near, far
