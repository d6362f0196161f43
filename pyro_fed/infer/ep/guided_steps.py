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
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.ep.ascent import GROW, SHRINK
from pyro_fed.infer.ep.step_control import ACCELERATION, StepControl
from pyro_fed.ops.backtrack import MIN_FRACTION

#: Entries of the server's state that are NaN or infinite if nothing is known.
UNKNOWN = frozenset({"points", "moves", "best_value", "bound"})


@dataclass(frozen=True)
class Path:
    """The server's record of past rounds.

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
    def begin(cls, natural: Tensor) -> Self:
        """The record before the first round."""
        past = natural.new_full((ACCELERATION["diag"][0], len(natural)), torch.nan)
        one = natural.new_ones(())
        return cls(natural, torch.zeros_like(natural), -torch.inf * one, one, past, past)

    @classmethod
    def of(cls, state: State) -> Self:
        """The record in the server's state."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})

    def state(self) -> State:
        """The entries of the server's state."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def has_fallen(self, bound: Tensor) -> bool:
        """Whether a bound is less than the best one, or not finite while that is."""
        return bool(self.best_value.isfinite() & ~(bound >= self.best_value - StepControl.fall))

    def back(self, proper: Callable[[Tensor], bool]) -> tuple[Tensor, Self]:
        """Another λ in place of one at which the bound has fallen, and the new record; `proper` tests a λ."""
        pace = SHRINK * self.pace
        while pace > MIN_FRACTION and not proper(self.best + pace * self.onward):
            pace = pace / 2
        nothing = torch.full_like(self.points, torch.nan)
        return self.best + pace * self.onward, replace(self, pace=pace, points=nothing, moves=nothing)

    def onwards(
        self, natural: Tensor, move: Tensor, bound: Tensor, fisher: Tensor, damping: float
    ) -> tuple[Tensor, Self]:
        """The addition to λ + s f, (P,), and the new record with s, at a λ where the bound has not fallen.

        `move` is f, `fisher` I (P, P), and `damping` the largest s.
        """
        points, moves = (torch.cat([past[1:], new[None]]) for past, new in ((self.points, natural), (self.moves, move)))
        pace = (GROW * self.pace).clamp_max(damping)
        found = replace(self, points=points, moves=moves, pace=pace)
        if bound >= self.best_value:
            found = replace(found, best=natural, onward=move, best_value=bound)
        known = points[:-1].isfinite().all(1) & moves[:-1].isfinite().all(1)
        root, failed = torch.linalg.cholesky_ex((fisher + fisher.T) / 2)
        if pace < damping or not known.any() or failed:
            return torch.zeros_like(natural), found
        by_point, by_move = natural - points[:-1][known], move - moves[:-1][known]
        share = torch.linalg.lstsq((by_move @ root).T, (move @ root).unsqueeze(-1), driver="gelsd").solution
        return -((by_point + pace * by_move) * share).sum(0), found
