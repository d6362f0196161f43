"""Unconstrained distributed SVGD (Kassab & Simeone, Algorithm 4): sites from all particles ever exchanged.

    t_k^(i)(θ) = Π_j q^(j)(θ) / q^(j-1)(θ)    over the rounds j at which client k worked                (10)
    ∇ log t_k^(i) = Σ_j [∇ log q^(j) - ∇ log q^(j-1)]                                                   (15)

with KDEs q^(j) and q^(0) = p_0, the prior itself. The client stores the particles that it received and sent in each of
its turns. Nothing is distilled, and the client's memory grows with the number of turns.

Letters: q^(j) `after`, q^(j-1) `before`, `turns` the number of slots in use; the others as in `dsvgd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.derivatives import prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.papers.dsvgd import Approximation, SiteParticles
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.stein import buffer_score_ratio, kde_score


class Turns(NamedTuple):
    """The particles before and after each turn of a client, which define its site; leading axes are clients."""

    before: Tensor  # the particles of q^(j-1), (V, N, D)
    after: Tensor  # those of q^(j)
    turns: Tensor  # number of slots in use, ()
    from_prior: Tensor  # whether the first q^(j-1) is the prior, ()

    def with_turn(self, q: Approximation, particles: Tensor) -> Turns:
        """These turns with one more, from q to particles (C, N, D); the buffers double if they are full."""
        before, after, turns, from_prior = self
        if int(turns.max()) == before.shape[1]:
            before, after = (torch.cat([buffer, torch.zeros_like(buffer)], 1) for buffer in (before, after))
        slot = (torch.arange(before.shape[1], device=turns.device) == turns[:, None])[..., None, None]
        before = torch.where(slot, q.particles[:, None], before)
        after = torch.where(slot, particles[:, None], after)
        return Turns(before, after, turns + 1, from_prior | q.is_prior)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class UDSVGD(SiteParticles):
    """Unconstrained DSVGD as published: sites from all particles that a client has ever exchanged.

    The buffer doubles when it is full, so that a compiled step is compiled anew only a few times.

    References:
        Kassab & Simeone, Appendix A.1, Algorithm 4, Eq. (9)-(15); settings from Table 3.

    Example:
        >>> idata = pf.run(pf.papers.UDSVGD(num_particles=100, batch_size=10), fed)
    """

    site_kind: ClassVar[type[Any]] = Turns

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start with empty buffers for one turn."""
        shared = self.start_shared(problem, generator)
        particles = shared["particles"]
        room = particles.new_zeros(num_clients, 1, *particles.shape)
        turns = torch.zeros(num_clients, dtype=torch.int64, device=particles.device)
        return shared, Turns(room, room.clone(), turns, torch.zeros_like(turns, dtype=torch.bool))._asdict()

    def site_score(self, problem: Problem, particles: Tensor, site: Turns) -> Tensor:
        """The score of Eq. (15); `before` of the first slot is the prior if the client worked in the first round."""
        used = torch.arange(len(site.before), device=particles.device) < site.turns
        score = buffer_score_ratio(particles, site.after, site.before, used, self.kde_bandwidth, self.kde_floor)
        first = kde_score(particles, site.before[0], self.kde_bandwidth, self.kde_floor)
        swap = first - prior_scores(problem, particles)
        return score + torch.where(site.from_prior, swap, torch.zeros_like(swap))

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Move the global particles, and store them as they were before and after."""
        q, turns = entries_as(Approximation, shared), entries_as(Turns, local)
        particles, steps = self.move_global(problem, q, turns, data, noise)
        figures = steps | self.figures(problem, q, particles, data)
        return {"particles": particles}, turns.with_turn(q, particles)._asdict(), figures
