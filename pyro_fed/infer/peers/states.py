"""What agents without a server keep between rounds, with names and types; leading axes are agents.

`History` says where agents take their next sites: Anderson acceleration seen from one agent (`ops.anderson`). The
histories agree as far as the beliefs do; where they differ, only the points differ at which sites are taken.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.infer.ep.step_control import ACCELERATION, StepControl
from pyro_fed.infer.sites.gaussian_sites import where
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian


class Agent(NamedTuple):
    """An agent of `PeerGaussian` and its kin.

    Args:
        site: t_i.
        prior_share: c_i, the prior's share in it, (A,); zero before the first round.
        anchor: Laplace's approximation of all data, under which the first site is taken; improper where it has none.
        start: the point (A, D) at which its search for one of its own data begins.
    """

    site: Annotated[Gaussian, ""]
    prior_share: Tensor
    anchor: Gaussian
    start: Tensor


class Turn(NamedTuple):
    """Where an agent of `P2PVI` stands in its turns.

    Args:
        next_row: the row at which its next turn begins, (A,).
        strict: whether its beliefs have to be proper, as the product of all sites once was not, (A,); None where rounds
            are not accelerated.
        pace: factor of the rate of its stochastic steps, (A,); None is one.
    """

    next_row: Tensor
    strict: Tensor | None = None
    pace: Tensor | None = None


class NetworkAgent(NamedTuple):
    """An agent that refines its belief by gradients, see `networks`.

    Args:
        site: t_i = l_i p_0^(c_i).
        likelihood: l_i.
        prior: p_0^(c_i), the prior's part.
        prior_share: c_i, (A,); zero before the first round.
        start: m_i, the point (A, D) that averaging has found.
    """

    site: Annotated[Gaussian, ""]
    likelihood: Annotated[Gaussian, "lik_"]
    prior: Gaussian
    prior_share: Tensor
    start: Tensor


class History(NamedTuple):
    """An agent's last rounds; leading axes are agents.

    Args:
        at: x_i, the point of its last site; NaN before the first.
        points: those of the last M rounds, oldest first, (A, M).
        moves: f = q_i - x_i of the same, with q_i the belief after the consensus.
    """

    at: Gaussian
    points: Gaussian
    moves: Gaussian

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
