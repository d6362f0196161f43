"""Where agents take their next sites: Anderson acceleration seen from one agent (see `ops.anderson`).

    local   at_*       the point x_i of the agent's last site, NaN before the first, (A, ...)
            points_*   points of the last M rounds, oldest first, (A, M, ...)
            moves_*    f = q_i - x_i of the same, with q_i the belief after the consensus

Every agent keeps its own history. The histories agree as far as the beliefs do; where they differ, only the points
differ at which sites are taken.
"""

from __future__ import annotations

import torch

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, where
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian

#: Settings of `ops.anderson.acceleration`.
GROWTH, LONGEST_STEP = 2.0, 5.0


def nothing_known(q: Gaussian, memory: int) -> State:
    """Empty histories of agents (A,)."""
    unknown = type(q)(torch.full_like(q.precision, torch.nan), torch.full_like(q.eta, torch.nan))
    past = type(q)(*(part.unsqueeze(1).repeat_interleave(memory, 1) for part in (unknown.precision, unknown.eta)))
    return {**as_state(unknown, "at_"), **as_state(past, "points_"), **as_state(past, "moves_")}


def look_ahead(q: Gaussian, local: State) -> tuple[Gaussian, State]:
    """Points (A,) for the next sites, and the histories with the last round in them."""
    at = gaussian(local, "at_")
    points = remember(_swap_leading_axes(gaussian(local, "points_")), at)
    moves = remember(_swap_leading_axes(gaussian(local, "moves_")), q.quotient(at))
    ahead = q.product(acceleration(points, moves, 1.0, GROWTH, LONGEST_STEP))
    ahead = where(ahead.is_proper(), ahead, q)
    kept = {**as_state(_swap_leading_axes(points), "points_"), **as_state(_swap_leading_axes(moves), "moves_")}
    return ahead, {**as_state(ahead, "at_"), **kept}


def _swap_leading_axes(past: Gaussian) -> Gaussian:
    """(A, M, ...) to (M, A, ...), or back."""
    return type(past)(past.precision.transpose(0, 1), past.eta.transpose(0, 1))
