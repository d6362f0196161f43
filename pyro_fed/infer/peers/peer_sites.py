"""An agent's new site and its public belief: the local part of a round of `P2PVI` and related algorithms.

    t_i^new   the expected Newton site of  log p(D_i | θ) + c_i log p(θ)  under the belief q_i
    b_i = q_i (t_i^new / t_i)^(s / v_i)        s the largest share up to the damping that leaves b_i proper,
                                               or its part of the consensus, see `complete_consensus_belief`

Expectations need a proper belief. An agent whose belief is not yet proper takes its first site under the Laplace
approximation of `consensus_laplace`, its anchor, or uses its own Laplace approximation (`local_laplace`).

The product of the first sites may be improper, because expected Hessians of a network are negative in some directions.
The product of the sites l_i with the curvature at the anchor's mean is proper: Π_i l_i is the anchor. A first site that
is improper is therefore replaced by

    l_i (t_i / l_i)^s       s the largest share that leaves  anchor (t_i / l_i)^(s / v_i)  proper

so that the product is proper.

If the sum is still improper after a consensus, all agents rescale their first sites towards anchor^(v_i), by the same
rule with anchor^(v_i) in place of l_i. The product of these is the anchor, which is proper; that of the l_i is improper
if Newton's method has not converged.

Letters: c_i `prior_share`, as in `peer_gaussian`. `History` is Anderson acceleration (`ops.anderson`) at one agent. If
the histories of agents differ, only the points at which they take sites differ.
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
    """The state of an agent of `PeerGaussian` and related algorithms."""

    site: Annotated[Gaussian, ""]  # t_i
    prior_share: Tensor  # c_i, the prior's share in it, (A,); zero before the first round
    # the Laplace approximation of all data, under which the first site is taken; improper if there is none
    anchor: Gaussian
    start: Tensor  # start of the search for the Laplace approximation of its own data, (A, D)


class Turn(NamedTuple):
    """The position of an agent of `P2PVI` in its data, and its rates."""

    next_row: Tensor  # the row at which its next turn begins, (A,)
    # whether public beliefs must be proper, since the product of all sites was improper once, (A,); None without
    # acceleration
    must_stay_proper: Tensor | None = None
    pace: Tensor | None = None  # factor on the rate of stochastic steps, (A,); None is 1

    def rows(self, data: ClientData, batch_size: int | None) -> tuple[ClientData, Tensor]:
        """This turn's rows, all if `batch_size` is None, and the first row (A,) of the next turn."""
        if batch_size is None:
            return data, self.next_row
        position = self.next_row[:, None] + torch.arange(batch_size, device=self.next_row.device)
        index = data.row_index.gather(1, position.clamp_max(data.row_index.shape[1] - 1))
        last = torch.minimum(position[:, -1] + 1, data.num_rows)
        return data._replace(row_index=index, num_rows=last - self.next_row), last


class History(NamedTuple):
    """The last rounds of each agent; leading axes are agents."""

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
        """The histories with a round that ended at beliefs q (A,), and with the extrapolated points `at`."""
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
    had_improper_sum: Tensor,
) -> tuple[Tilted, Tensor]:
    """The solver's sites under proper beliefs, else first sites; and whether beliefs are proper, (C,)."""
    is_proper = received.q.is_proper()
    if bool(is_proper.all()) or not solver.newton_steps:
        return solver.infer(problem, numerics, received, data, noise), is_proper
    site = _first_sites(problem, numerics, received.q, data, agent, weight, had_improper_sum)
    return Tilted(site, torch.ones_like(is_proper), {}), is_proper


def _first_sites(
    problem: Problem,
    numerics: Numerics,
    q: Gaussian,
    data: ClientData,
    agent: Agent,
    weight: Tensor,
    had_improper_sum: Tensor,
) -> Gaussian:
    """Expected Newton sites under beliefs, or else under anchors; own Laplace approximations without an anchor."""
    is_proper, has_anchor = q.is_proper(), agent.anchor.is_proper()
    base = where(is_proper, q, where(has_anchor, agent.anchor, type(q).from_moments(agent.start, unit_spread(q))))
    has_base = is_proper | has_anchor
    own_laplace = None
    if not bool(has_base.all()):
        own_laplace = local_laplace(numerics.derivatives, problem, data.full_batch(), numerics.prior_share, agent.start)
        if not bool(has_base.any()):
            return own_laplace
    site = site_of(numerics.expected(problem, base, data), base.mean())
    is_improper = has_anchor & ~is_proper & ~had_improper_sum & ~site.is_proper()
    if bool(is_improper.any()):  # towards the curvature at the anchor's mean
        point = base.mean()[None]
        moments = numerics.derivatives.of_likelihood(problem, point, data.full_batch())
        moments = with_prior(numerics.derivatives, problem, point, moments, numerics.prior_share)
        site = where(is_improper, _sites_with_proper_sum(base, site, site_of(moments, base.mean()), weight), site)
    needs_anchor = had_improper_sum & has_anchor
    if bool(needs_anchor.any()):  # towards the agent's share of the anchor
        site = where(needs_anchor, _sites_with_proper_sum(base, site, base ** (1.0 / weight), weight), site)
    return site if own_laplace is None else where(has_base, site, own_laplace)


def sum_of_sites_is_improper(q: Gaussian, old: Gaussian) -> Tensor:
    """Whether beliefs are improper although they contain sites, (C,); `old` are these sites, flat at first."""
    return ~q.is_proper() & (old.precision != 0).flatten(1).any(1)


def _sites_with_proper_sum(anchor: Gaussian, site: Gaussian, base: Gaussian, weight: Tensor) -> Gaussian:
    """First sites moved towards base sites whose product is the anchor, so that their product is proper."""
    change = site / base
    fraction = backtrack(anchor, change**weight, max_fraction=1.0)
    return where(fraction == 1, site, move(base, change, fraction))


def public_belief(q: Gaussian, delta: Gaussian, is_proper: Tensor, damping: float) -> tuple[Gaussian, Tensor]:
    """b = q δ^s, with the largest s up to `damping` that leaves a proper belief proper; and s (C,)."""
    proper_q = where(is_proper, q, type(q).from_moments(q.eta, unit_spread(q)))
    backtracked = backtrack(proper_q, delta, max_fraction=damping)
    fraction = torch.where(is_proper, backtracked, 1.0)
    return q * delta**fraction, fraction


def complete_consensus_belief(
    q: Gaussian, old: Gaussian, site: Gaussian, weight: Tensor, is_proper: Tensor, must_stay_proper: Tensor
) -> tuple[Gaussian, Tensor]:
    """As `public_belief` by (t_new / t_old)^(1 / v), with the larger share that the consensus of all agents allows."""
    change = site / old
    belief, fraction = public_belief(q, change**weight, is_proper, 1.0)
    if bool((fraction == 1).all()):
        return belief, fraction
    proper_q = where(is_proper, q, type(q).from_moments(q.eta, unit_spread(q)))
    concave = (
        torch.stack([proper_q.relative_change(one).amin(-1) for one in (site, old)]).amin(0) > -SAME_SHARE
    )  # up to rounding
    site_fraction = backtrack(proper_q, change, max_fraction=1.0)
    larger_fraction = torch.where(
        is_proper & concave & ~must_stay_proper, torch.maximum(site_fraction, fraction), fraction
    )
    return where(larger_fraction == fraction, belief, q * change ** (weight * larger_fraction)), larger_fraction
