"""An agent's new site, and the belief that it makes public: what `P2PVI` and its kin do between two consensus steps.

    t_i^new   the expected Newton site of  log p(D_i | θ) + c_i log p(θ)  under the belief q_i
    b_i = q_i (t_i^new / t_i)^(s / v_i)        s the largest share up to the damping that leaves b_i proper,
                                               or its part of the consensus, see `seen_whole`

An agent whose belief is not yet proper cannot take expectations under it: its first site is taken under the
Laplace approximation of `consensus_laplace`, its anchor, or is its own (`local_laplace`).

The product of the first sites need not be a distribution: expected Hessians of a network are negative in some
directions. That of the sites l_i of the curvature at the anchor's mean is one: Π_i l_i is the anchor. So a first site
without a precision of its own is

    l_i (t_i / l_i)^s       s the largest share that leaves  anchor (t_i / l_i)^(s / v_i)  proper

whose product is a mean of these, and proper.

The product of these with sites that have a precision of their own may not be a distribution: every agent sees that
after the consensus. From then on, until beliefs are proper, all agents' first sites are bent in the same way, towards
a_i, the agent's part anchor^(v_i) of the anchor in place of l_i: their product is the anchor, even if Newton's method
has not converged, and the product of the l_i, curvatures at a point that is not a mode, is no distribution.

Letters: c_i `prior_share`, as in `peer_gaussian`. What agents keep between rounds is here too: `History` is Anderson
acceleration (`ops.anderson`) seen from one agent. Histories agree as far as beliefs do; where they differ, only the
points differ at which sites are taken.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.step_control import ACCELERATION, StepControl
from pyro_fed.infer.ep.tilted import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.peers.local_laplace import local_laplace, unit_spread
from pyro_fed.infer.sites.gaussian_sites import site_of, where, with_prior
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.backtrack import backtrack, move
from pyro_fed.ops.gaussian import Gaussian


class Agent(NamedTuple):
    """An agent of `PeerGaussian` and its kin."""

    site: Annotated[Gaussian, ""]  # t_i
    prior_share: Tensor  # c_i, the prior's share in it, (A,); zero before the first round
    # Laplace's approximation of all data, under which the first site is taken; improper where it has none
    anchor: Gaussian
    start: Tensor  # the point (A, D) at which its search for one of its own data begins


class Turn(NamedTuple):
    """Where an agent of `P2PVI` stands in its turns."""

    next_row: Tensor  # the row at which its next turn begins, (A,)
    # whether its beliefs have to be proper, as the product of all sites once was not, (A,); None where rounds are not
    # accelerated
    strict: Tensor | None = None
    pace: Tensor | None = None  # factor of the rate of its stochastic steps, (A,); None is one

    def rows(self, data: ClientData, batch_size: int | None) -> tuple[ClientData, Tensor]:
        """This turn's rows, all if `batch_size` is None, and the row (A,) where the next turn begins."""
        if batch_size is None:
            return data, self.next_row
        position = self.next_row[:, None] + torch.arange(batch_size, device=self.next_row.device)
        index = data.row_index.gather(1, position.clamp_max(data.row_index.shape[1] - 1))
        last = torch.minimum(position[:, -1] + 1, data.num_rows)
        return data._replace(row_index=index, num_rows=last - self.next_row), last


class History(NamedTuple):
    """An agent's last rounds; leading axes are agents."""

    at: Gaussian  # x_i, the point of its last site; NaN before the first
    points: Gaussian  # those of the last M rounds, oldest first, (A, M)
    moves: Gaussian  # f = q_i - x_i of the same, with q_i the belief after the consensus

    @classmethod
    def empty(cls, q: Gaussian, memory: int) -> History:
        """Histories of M rounds without any, of agents (A,)."""
        at = type(q)(torch.full_like(q.precision, torch.nan), torch.full_like(q.eta, torch.nan))
        past = type(q)(*(part.unsqueeze(1).repeat_interleave(memory, 1) for part in (at.precision, at.eta)))
        return cls(at, past, past)

    def look_ahead(self, q: Gaussian) -> History:
        """The histories with a round that ended at beliefs q (A,), `at` the points for the next sites."""
        points = remember(_swap_leading_axes(self.points), self.at)
        moves = remember(_swap_leading_axes(self.moves), q.quotient(self.at))
        ahead = q.product(acceleration(points, moves, 1.0, StepControl.growth, ACCELERATION["full"][1]))
        ahead = where(ahead.is_proper(), ahead, q)
        return History(ahead, _swap_leading_axes(points), _swap_leading_axes(moves))


def _swap_leading_axes(past: Gaussian) -> Gaussian:
    """(A, M, ...) to (M, A, ...), or back."""
    return type(past)(past.precision.transpose(0, 1), past.eta.transpose(0, 1))


def new_site(
    solver: TiltedInference,
    problem: Problem,
    numerics: Numerics,
    received: Received,
    data: ClientData,
    noise: Noise,
    agent: Agent,
    weight: Tensor,
    lost: Tensor,
) -> tuple[Tilted, Tensor]:
    """Sites under beliefs or anchors, or an agent's own Laplace approximation; and (C,) whether beliefs are proper."""
    q = received.q
    known = q.is_proper()
    if bool(known.all()) or not solver.newton_steps:
        return solver.infer(problem, numerics, received, data, noise), known
    anchor, usable = agent.anchor, torch.ones_like(known)
    anchored = anchor.is_proper()
    under = where(known, q, where(anchored, anchor, type(q).from_moments(agent.start, unit_spread(q))))
    found = known | anchored
    own = None
    if not bool(found.all()):
        own = local_laplace(numerics.derivatives, problem, data.full_batch(), numerics.prior_share, agent.start)
        if not bool(found.any()):
            return Tilted(own, usable, {}), known
    site = site_of(numerics.expected(problem, under, data), under.mean())
    held = anchored & ~known & ~lost & ~site.is_proper()
    if bool(held.any()):
        point = under.mean()[None]
        moments = numerics.derivatives.of_likelihood(problem, point, data.full_batch())
        moments = with_prior(numerics.derivatives, problem, point, moments, numerics.prior_share)
        site = where(held, _proper_first_sites(under, site, site_of(moments, under.mean()), weight), site)
    if bool((lost & anchored).any()):
        site = where(lost & anchored, _proper_first_sites(under, site, under ** (1.0 / weight), weight), site)
    return Tilted(site if own is None else where(found, site, own), usable, {}), known


def without_distribution(q: Gaussian, old: Gaussian) -> Tensor:
    """(C,) whether beliefs with sites in them are no distributions; `old`, the sites in them, are flat at first."""
    return ~q.is_proper() & (old.precision != 0).flatten(1).any(1)


def _proper_first_sites(anchor: Gaussian, site: Gaussian, base: Gaussian, weight: Tensor) -> Gaussian:
    """First sites bent towards a base whose product is the anchor, so that theirs is a distribution: see above."""
    change = site / base
    fraction = backtrack(anchor, change**weight, max_fraction=1.0)
    return where(fraction == 1, site, move(base, change, fraction))


def public_belief(q: Gaussian, delta: Gaussian, known: Tensor, damping: float) -> tuple[Gaussian, Tensor]:
    """b = q δ^s, with the largest share s up to `damping` that leaves a proper belief proper; and s (C,)."""
    safe = where(known, q, type(q).from_moments(q.eta, unit_spread(q)))
    taken = backtrack(safe, delta, max_fraction=damping)
    fraction = torch.where(known, taken, 1.0)
    return q * delta**fraction, fraction


def seen_whole(
    q: Gaussian, old: Gaussian, site: Gaussian, weight: Tensor, known: Tensor, strict: Tensor
) -> tuple[Gaussian, Tensor]:
    """b = q (t_new / t_old)^(s / v), if agents use not b itself but the consensus of all, and s (C,)."""
    change = site / old
    belief, fraction = public_belief(q, change**weight, known, 1.0)
    if bool((fraction == 1).all()):
        return belief, fraction
    safe = where(known, q, type(q).from_moments(q.eta, unit_spread(q)))
    concave = (
        torch.stack([safe.relative_change(one).amin(-1) for one in (site, old)]).amin(0) > -SAME_SHARE
    )  # but for rounding
    alone = backtrack(safe, change, max_fraction=1.0)
    further = torch.where(known & concave & ~strict, torch.maximum(alone, fraction), fraction)
    return where(further == fraction, belief, q * change ** (weight * further)), further
