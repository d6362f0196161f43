"""Limits on a client's effect on particles, from its surrogate and the cohort's residuals.

Of client k's score at the n-th particle the server knows the surrogate's and, from what k has sent, the residual

    r_{k,n} = ∇ log p_k(z_n) - (η_k - Λ_k z_n)         R_k = (mean_n |r_{k,n}|²)^(1/2)

in SDs of the Gaussian that the particles are whitened by: a residual of e moves the mean by e SDs. It is cut back to

    R_k ≤ max(b ρ_k^(1/2) med_j R_j / ρ_j^(1/2), `ACCEPTED_SHIFT_SDS`)

with ρ the rows over the median client's, at least 1 for R_k; and beyond twice that bound as in `algorithm.bounding`.
The server validates the new particles: it makes the turn itself, towards the prior and all clients' sites with the
residuals it had, and takes the client's particles if all are within one turn's longest move of its own,

    L h (1 + t / `DECAY_OFFSET`)^-`decay`

otherwise its own. AdaGrad's state and the figures by which a run ends are the server's own. The next clients have exact
scores of their own at these particles, which makes up for a turn that was too short or too long.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import ACCEPTED_SHIFT_SDS, LARGEST_DISTANCE, median_of, redescending, relative_rows


class HeldResiduals(NamedTuple):
    """Residuals (C, N, D) within the limit, and by how many SDs each was beyond it, `cut` (C,)."""

    residuals: Tensor
    cut: Tensor


def held_residuals(known: Tensor, clients: Tensor, sent: Tensor, rows: Tensor | None, pull: float) -> HeldResiduals:
    """Residuals (C, N, D) that clients sent, limited by the cohort's.

    `known` are the residuals of all clients that were last accepted, (K, N, D); `rows` (K,) are the clients' numbers of
    rows, None if they are equal, and `pull` is b.
    """
    everyone = known.clone()
    everyone[clients] = sent.to(known)
    share = relative_rows(known.new_ones(len(known)) if rows is None else rows.to(known))
    size = everyone.double().square().sum(-1).mean(-1).sqrt().to(known)
    usual = median_of(size / share.sqrt(), share)
    reach = (pull * share.clamp_min(1.0).sqrt() * usual).clamp_min(ACCEPTED_SHIFT_SDS)[clients]
    own = size[clients]
    short = torch.where(own > reach, redescending(own, reach) / own, 1.0)
    return HeldResiduals(sent * short.reshape(-1, 1, 1), (own - reach).double().clamp(0, LARGEST_DISTANCE))


def held_particles(sent: Tensor, own: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """A client's particles (N, D) if all are within `reach` of the server's, else the server's; and the excess, ()."""
    away = (sent - own).abs()
    beyond = (away.amax() - reach).double().clamp(0, LARGEST_DISTANCE)
    return (sent if float(beyond) == 0 else own), beyond
