"""Steps of a guide's natural parameters: accelerated, and taken back if the evidence's lower bound has fallen.

    λ' = λ + s f - (ΔX + s ΔF) γ,    γ = arg min ‖f - ΔF γ‖_I    f = Σ_k (λ_k' - λ_k),  I Fisher's information

The rule is that of expected Newton steps of Gaussians: `ops.anderson` for a vector λ, in the metric I, over the same
number of rounds, and `ascent`: a step after which the bound has fallen by more than `StepControl.fall` is taken back,
and a quarter of the clients' change at the best λ is tried, doubled with each step that is kept. Otherwise steps of
factors whose parameters are correlated in the posterior overstep, by any length.

Letters: s `pace`, f `move`, ΔX and ΔF differences of `points` and `moves`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.infer.ep.ascent import GROW, SHRINK
from pyro_fed.infer.ep.step_control import ACCELERATION
from pyro_fed.ops.anderson import least_squares
from pyro_fed.ops.backtrack import MIN_FRACTION

#: Entries of the server's state that are NaN or infinite if nothing is known.
UNKNOWN = frozenset({"points", "moves", "best_value", "bound"})


class Path(NamedTuple):
    """The server's record of past rounds, entries of its state.

    Args:
        best: the λ of the largest bound, (P,).
        onward: f at `best`, (P,).
        best_value: the largest bound, (); -inf if there is none yet.
        pace: s, ().
        points: λ of the last rounds, (M, P); NaN where there is none.
        moves: f of the last rounds, (M, P).
    """

    best: Tensor
    onward: Tensor
    best_value: Tensor
    pace: Tensor
    points: Tensor
    moves: Tensor

    @classmethod
    def begin(cls, natural: Tensor) -> Path:
        """The record before the first round."""
        past = natural.new_full((ACCELERATION["diag"][0], len(natural)), torch.nan)
        one = natural.new_ones(())
        return cls(natural, torch.zeros_like(natural), -torch.inf * one, one, past, past)

    def back(self, proper: Callable[[Tensor], bool]) -> tuple[Tensor, Path]:
        """Another λ in place of one at which the bound has fallen, and the new record; `proper` tests a λ."""
        pace = SHRINK * self.pace
        while pace > MIN_FRACTION and not proper(self.best + pace * self.onward):
            pace = pace / 2
        nothing = torch.full_like(self.points, torch.nan)
        return self.best + pace * self.onward, self._replace(pace=pace, points=nothing, moves=nothing)

    def onwards(
        self, natural: Tensor, move: Tensor, bound: Tensor, fisher: Tensor, damping: float
    ) -> tuple[Tensor, Path]:
        """The addition to λ + s f, (P,), and the new record with s, at a λ where the bound has not fallen.

        `move` is f, `fisher` I (P, P), and `damping` the largest s.
        """
        points, moves = (torch.cat([past[1:], new[None]]) for past, new in ((self.points, natural), (self.moves, move)))
        pace = (GROW * self.pace).clamp_max(damping)
        path = self._replace(points=points, moves=moves, pace=pace)
        if bound >= self.best_value:
            path = path._replace(best=natural, onward=move, best_value=bound)
        known = points[:-1].isfinite().all(1) & moves[:-1].isfinite().all(1)
        root, failed = torch.linalg.cholesky_ex((fisher + fisher.T) / 2)
        if pace < damping or not known.any() or failed:
            return torch.zeros_like(natural), path
        by_point, by_move = natural - points[:-1][known], move - moves[:-1][known]
        share = least_squares(by_move @ root, move @ root).unsqueeze(-1)
        return -((by_point + pace * by_move) * share).sum(0), path
