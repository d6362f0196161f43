"""Where agents take their next sites: Anderson acceleration seen from one agent (see `ops.anderson`).

Every agent keeps its own history. The histories agree as far as the beliefs do; where they differ, only the points
differ at which sites are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pyro_fed.infer.ep.step_control import ACCELERATION, StepControl
from pyro_fed.infer.sites.gaussian_sites import where
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian


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
