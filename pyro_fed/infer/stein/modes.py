"""Modes of a federated posterior: Newton's method from many points at once.

Particles that start around one mode never reach another. So all modes are searched for first: M points θ climb the log
density f = log p_0 + Σ_k log p_k. They start at the mode that `FedLaplace` has found, at its `images`, and at draws of
the prior (half of these are chosen among many draws to be far apart, `ops.entries.far_apart`).

**A round.** The server sends the M points. Every client answers with its log-likelihood's value, score and Hessian at
each. For each point the server keeps the new position if f has risen, else the old one, and proposes the next one by a
damped Newton step (`ops.newton_ascent`, with its letters).

**Many rows.** An earlier phase climbs with few rows of each client that represent all (`sites.few_rows`), because far
from a mode only the direction matters. Climbs with all rows then start at the modes that these few rows have, and at
the known mode.

**One mode.** If the model's structure shows that the posterior has one mode (`concave`), no other point climbs.

**The result.** Points that settle within `same_mode` SDs of each other are one mode. A mode's share of the posterior is
its mass by Laplace's approximation, exp(f(θ)) |H|^(-1/2), normalised over the modes.

Letters: M the number of points; others as in `ops.newton_ascent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.derivatives import (
    first_row_count,
    look_at_likelihood,
    look_at_prior,
    pick_rows,
    points_for_tangents,
)
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.stein.concave import OneMode, is_only
from pyro_fed.ops.entries import CANDIDATES, choose, far_apart, with_trailing_axes
from pyro_fed.ops.matrices import equilibrated_cholesky
from pyro_fed.ops.newton_ascent import Damping, Look, NewtonAscent


@dataclass(frozen=True, kw_only=True)
class Modes(Algorithm):
    """Damped Newton steps from several starts at once.

    Args:
        num_starts: number of draws of the prior as starts, chosen among `CANDIDATES` times as many.
        max_rounds: largest number of rounds; starts that have not settled by then are dropped.
        tolerance: a start has settled when its next undamped step is shorter than this many posterior SDs.
        same_mode: points closer than this many SDs are one mode.
        first_damping: λ at the start.
        growth: λ grows by this factor after a fall, and shrinks by it after a rise.
        by_few_rows: search by few rows of each client; the earlier phase, if rows are many.
        after: the earlier phase: "few_rows" (climbs by few rows) or "one_mode" (the search for one).
    """

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    num_starts: int = 15
    max_rounds: int = 30
    tolerance: float = 1e-2
    same_mode: float = 0.5
    first_damping: float = 1.0
    growth: float = 5.0
    by_few_rows: bool = False
    after: Literal["auto", "few_rows", "one_mode"] = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_starts", "max_rounds")
        check_positive(self, "tolerance", "same_mode", "first_damping", "growth")

    def default_rounds(self, num_clients: int) -> int:
        """`max_rounds` rounds; the run ends when all starts have settled."""
        return self.max_rounds

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """With many rows the search by few rows; else the search for one mode, or the check that it is the only one."""
        if chosen_setting(self, "after") == "few_rows":
            return replace(self, by_few_rows=True, after="one_mode")
        return self.newton() if points_for_tangents(problem) is None else self.question()

    def newton(self) -> Algorithm:
        """The search for one mode."""
        return FedLaplace()

    def question(self) -> Algorithm:
        """The phase that finds one mode and checks whether it is the only one."""
        return OneMode(newton=self.newton())

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the points of the mode search.

        They are the known mode; and, unless it is the only one, the modes of few rows if there are any, else draws of
        the prior and the known mode's images.
        """
        start = required_start(start, self)
        found = start.shared
        if is_only(found):
            others = found["point"].new_zeros(0, problem.dim)
        elif "points" in found:
            others = modes_of(found, self.tolerance, self.same_mode)[0]
        else:
            drawn = problem.init(CANDIDATES * self.num_starts, generator)
            others = drawn[far_apart(drawn, self.num_starts)].to(found["point"])
            others = torch.cat([others, problem.images(found["point"].to(problem.dtype)).to(others)])
        points = torch.cat([found["point"][None], others])
        climbs = NewtonAscent.begin(points, self.first_damping)
        prior = Look(climbs.value, climbs.score, climbs.curvature)
        usable = {"prior_usable": climbs.length > 0}
        return found | climbs._asdict() | _of_prior(prior) | usable, start.local

    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute the prior at the trial points."""
        look = look_at_prior(problem, shared["trial"].to(problem.dtype))
        usable = look.finite()
        kept = Look(*(choose(usable, part, 0.0) for part in look))
        return shared | _of_prior(kept) | {"prior_usable": usable}

    def download(self, shared: State, clients: Tensor) -> State:
        """The trial points, which clients receive."""
        return super().download({"trial": shared["trial"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Compute the log-likelihood at the trial points, with its derivatives."""
        points = shared["trial"].to(problem.dtype)
        if self.by_few_rows:
            few, times = pick_rows(problem, data, first_row_count(problem.dim))
            found = Look(*(with_trailing_axes(times, part) * part for part in look_at_likelihood(problem, points, few)))
        else:
            found = look_at_likelihood(problem, points, data)
        usable = found.finite()
        parts = {name: choose(usable, part.double(), 0.0) for name, part in found._asdict().items()}
        return {**parts, "usable": usable}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Keep the positions at which f has risen, and propose the next ones."""
        look = Look(*(messages[name].sum(0) + shared[f"prior_look_{name}"] for name in Look._fields))
        usable = messages["usable"].all(0) & shared["prior_usable"] & look.finite()
        climbs = NewtonAscent(*(shared[name] for name in NewtonAscent._fields))
        return shared | climbs.tell(look, usable, Damping(self.growth))._asdict()

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The longest next step in SDs, and the number of starts that have settled."""
        settled = float((after["length"] < self.tolerance).double().mean())
        return {"change": float(after["length"].amax()), "settled": settled}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether all starts have settled."""
        return figures[-1]["settled"] == 1.0

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The modes' points, (1, M, D)."""
        return shared["points"][None]


def modes_of(shared: State, tolerance: float, same_mode: float) -> tuple[Tensor, Tensor, Tensor]:
    """The different settled maxima, best first: points (C, D), precisions (C, D, D) and shares (C,)."""
    value, points, precision = shared["value"], shared["points"], shared["curvature"]
    factor = equilibrated_cholesky(precision)
    settled = (shared["length"] < tolerance) & factor.proper
    settled[0] |= bool(factor.proper[0])
    evidence = torch.where(settled, value - 0.5 * torch.linalg.slogdet(precision)[1], -torch.inf)
    chosen: list[int] = []
    for i in evidence.argsort(descending=True).tolist():
        offsets = points[i] - points[chosen]
        near = torch.einsum("cd,de,ce->c", offsets, precision[i], offsets) < same_mode**2
        if settled[i] and not bool(near.any()):
            chosen.append(i)
    return points[chosen], precision[chosen], torch.softmax(evidence[chosen], 0)


def _of_prior(look: Look) -> State:
    """The prior's values under their names in the state."""
    return {f"prior_look_{name}": value for name, value in look._asdict().items()}
