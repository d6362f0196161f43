"""A check that a posterior has one mode: a Gaussian prior, and rows that are concave in their linear predictors.

The clients compare tangents of their rows' log-likelihoods with these at points spread over the prior and at the known
mode (`density.derivatives.other_curvatures`). If one row of one client is not concave, modes are searched as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.kinds import cast_checked
from pyro_fed.density.derivatives import count_tangents_below, first_row_count, pick_rows, points_for_tangents
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData


@dataclass(frozen=True, kw_only=True)
class OneMode(Algorithm):
    """One check by the clients, between the search for one mode and that for others.

    Args:
        newton: the search for one mode.
        by_few_rows: whether few rows of each client are checked; None checks few if rows are many.
    """

    draws_are: ClassVar[str] = "point"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    newton: Algorithm
    by_few_rows: bool | None = None

    def default_rounds(self, num_clients: int) -> int:
        """One round."""
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for one mode."""
        return self.newton

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the points at which tangents are compared."""
        start = required_start(start, self)
        mode, spread = start.shared["point"], cast_checked(points_for_tangents(problem), Tensor)
        return start.shared | {
            "pairs": torch.cat([spread.to(mode), mode[None]]),
            "bent": mode.new_zeros(()),
        }, start.local

    def download(self, shared: State, clients: Tensor) -> State:
        """The points, which clients receive."""
        return super().download({"pairs": shared["pairs"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Count the tangents that lie below; if rows are many, of the few rows by which modes are searched."""
        rows = pick_rows(problem, data, first_row_count(problem.dim))[0] if self.by_few_rows else data
        return {"bent": count_tangents_below(problem, shared["pairs"], rows)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the clients' counts."""
        return {**shared, "bent": messages["bent"].sum(0)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The number of tangents that lie below."""
        return {"bent": float(after["bent"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """True after the one round."""
        return True

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The known mode, (1, 1, D)."""
        return shared["point"][None, None]


def is_only(found: State) -> bool:
    """Whether the known mode is the only one, by the clients' counts; false if they were not asked."""
    return "bent" in found and not bool(found["bent"])
