"""Modes of a federated posterior: Newton's method from many points at once, and the Gaussian nearest to a single mode.

Particles that start around one mode never reach another. All modes are therefore searched for first: M points θ ascend
the log density f = log p_0 + Σ_k log p_k. They start at the mode of `FedLaplace`, at its `images`, and at draws of the
prior (half of which are chosen among many draws to be far apart, `ops.entries.far_apart`).

**A round.** The server sends the M points. Every client replies with the value, score and Hessian of its log-likelihood
at each. For each point the server keeps the new position if f has risen, else the old one, and proposes the next one by
a damped Newton step (`ops.newton_ascent`, with its letters).

**Many rows.** An earlier phase uses a few representative rows of each client (`density.derivatives.few_rows`), because
far from a mode only the direction matters. Searches with all rows then start at its modes, and at the known one.

**One mode** (`OneMode`). With a Gaussian prior and rows that are concave in their linear predictors there is only one
mode, and no further search. The clients compare their rows' log-likelihoods with tangents at points spread over the
prior and at the known mode (`density.derivatives`). If a single row is not concave, modes are searched for as usual.

**The result.** Points that settle within `same_mode` SDs of each other are one mode. A mode's share of the posterior is
its mass by the Laplace approximation, exp(f(θ)) |H|^(-1/2), normalised over the modes.

**Then** (`Nearest`) `FedEP` computes, in a few rounds, the Gaussian q nearest to a posterior of one mode in KL(q ‖ p),
whose mean and SDs particles would otherwise reach only in many turns. If there are several modes, or q does not
converge in these rounds, the Laplace approximation is used.

Letters: M the number of points; others as in `ops.newton_ascent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, required_start
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.derivatives import (
    count_tangents_below,
    first_row_count,
    look_at_likelihood,
    look_at_prior,
    pick_rows,
    points_for_tangents,
)
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, largest_move, moments_of
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import CANDIDATES, choose, far_apart, with_trailing_axes
from pyro_fed.ops.matrices import equilibrated_cholesky
from pyro_fed.ops.newton_ascent import Damping, NewtonAscent


@dataclass(frozen=True, kw_only=True)
class OneMode(Algorithm):
    """A check by the clients whether a mode is the only one, before a search for others."""

    draws_are: ClassVar[str] = "point"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    newton: Algorithm  # the search for one mode
    by_few_rows: bool | None = None  # whether few rows of each client are checked; None checks few if rows are many

    def default_rounds(self, num_clients: int) -> int:
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
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
        return super().download({"pairs": shared["pairs"]}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        rows = pick_rows(problem, data, first_row_count(problem.dim))[0] if self.by_few_rows else data
        return {"bent": count_tangents_below(problem, shared["pairs"], rows)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return {**shared, "bent": messages["bent"].sum(0)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return {"bent": float(after["bent"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return True

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return shared["point"][None, None]


@dataclass(frozen=True, kw_only=True)
class Modes(Algorithm):
    """Damped Newton steps from several starts at once."""

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    #: The search for one mode, and the check that it is the only one.
    newton: ClassVar[type[FedLaplace]] = FedLaplace
    one_mode: ClassVar[type[OneMode]] = OneMode

    num_starts: int = 15  # number of draws of the prior as starts, chosen among `CANDIDATES` times as many
    max_rounds: int = 30  # largest number of rounds; searches that have not converged by then are dropped
    tolerance: float = 1e-2  # a search has converged when its next undamped step is shorter, in posterior SDs
    same_mode: float = 0.5  # points closer than this many SDs are one mode
    first_damping: float = 1.0  # λ at the start
    growth: float = 5.0  # λ grows by this factor after a fall, and shrinks by it after a rise
    by_few_rows: bool = False  # search by few rows of each client; the earlier phase, if rows are many
    # the earlier phase: "few_rows" (climbs by few rows) or "one_mode" (the search for one)
    after: Literal["auto", "few_rows", "one_mode"] = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_starts", "max_rounds")
        check_positive(self, "tolerance", "same_mode", "first_damping", "growth")

    def default_rounds(self, num_clients: int) -> int:
        return self.max_rounds

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """With many rows the search by few rows; else the search for one mode, or the check that it is the only one."""
        if chosen_setting(self, "after") == "few_rows":
            return replace(self, by_few_rows=True, after="one_mode")
        newton = self.newton()
        return newton if points_for_tangents(problem) is None else self.one_mode(newton=newton)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the known mode; unless it is the only one, also from modes of few rows, or draws of the prior."""
        start = required_start(start, self)
        search = start.shared
        if "bent" in search and not bool(search["bent"]):  # by the clients' counts the known mode is the only one
            others = search["point"].new_zeros(0, problem.dim)
        elif "points" in search:
            others = modes_of(search, self.tolerance, self.same_mode)[0]
        else:
            drawn = problem.init(CANDIDATES * self.num_starts, generator)
            others = drawn[far_apart(drawn, self.num_starts)].to(search["point"])
            others = torch.cat([others, problem.images(search["point"].to(problem.dtype)).to(others)])
        points = torch.cat([search["point"][None], others])
        climbs = NewtonAscent.begin(points, self.first_damping)
        prior = Moments(climbs.value, climbs.score, climbs.curvature)
        usable = {"prior_usable": climbs.length > 0}
        return search | climbs._asdict() | _of_prior(prior) | usable, start.local

    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute the prior at the trial points."""
        look = look_at_prior(problem, shared["trial"].to(problem.dtype))
        usable = look.finite()
        kept = Moments(*(choose(usable, part, 0.0) for part in look))
        return shared | _of_prior(kept) | {"prior_usable": usable}

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({"trial": shared["trial"]}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute the log-likelihood at the trial points, with its derivatives."""
        points = shared["trial"].to(problem.dtype)
        if self.by_few_rows:
            few, times = pick_rows(problem, data, first_row_count(problem.dim))
            evaluations = Moments(
                *(with_trailing_axes(times, part) * part for part in look_at_likelihood(problem, points, few))
            )
        else:
            evaluations = look_at_likelihood(problem, points, data)
        usable = evaluations.finite()
        parts = {name: choose(usable, part.double(), 0.0) for name, part in evaluations._asdict().items()}
        return {**parts, "usable": usable}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Keep the positions at which f has risen, and propose the next ones."""
        look = Moments(*(messages[name].sum(0) + shared[f"prior_look_{name}"] for name in Moments._fields))
        usable = messages["usable"].all(0) & shared["prior_usable"] & look.finite()
        climbs = NewtonAscent(*(shared[name] for name in NewtonAscent._fields))
        return shared | climbs.tell(look, usable, Damping(self.growth))._asdict()

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The longest next step in SDs, and the number of searches that have converged."""
        settled = float((after["length"] < self.tolerance).double().mean())
        return {"change": float(after["length"].amax()), "settled": settled}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return figures[-1]["settled"] == 1.0

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return shared["points"][None]


def modes_of(shared: State, tolerance: float, same_mode: float) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct converged maxima, best first: points (C, D), precisions (C, D, D) and shares (C,)."""
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


def _of_prior(look: Moments) -> State:
    """The prior's values under their names in the state."""
    return {f"prior_look_{name}": value for name, value in look._asdict().items()}


#: Entries of the mode search's result that the particles' start needs.
OF_MODES = ("points", "value", "curvature", "length", "point", "back")
#: Entries of Laplace's approximation, by these names.
LAPLACE = "laplace_"


@dataclass(frozen=True, kw_only=True)
class Nearest(FedEP):
    """`FedEP` from the only mode, as accurate as needed for a start."""

    may_be_infinite: ClassVar[frozenset[str]] = FedEP.may_be_infinite | set(OF_MODES)

    search: ClassVar[type[Modes]] = Modes

    tolerance: float = (
        0.02  # q has converged when no mean moves by more SDs in a round, and no SD by more than this share
    )

    def default_rounds(self, num_clients: int) -> int:
        return 12  # a nearly Gaussian posterior needs four to eight

    def warm_start(self, problem: Problem) -> Algorithm | None:
        return self.search()

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the Laplace sites, and keep these and the results of the search."""
        start = required_start(start, self)
        whole = Start(start.shared | {"fall": torch.zeros(())}, start.local)  # no end of a climb ends the run
        shared, local = super().init(problem, num_clients, generator, whole)
        search_result = {name: start.shared[name] for name in OF_MODES}
        count = float(len(modes_of(start.shared, Modes.tolerance, Modes.same_mode)[0]))
        q, prior = gaussian(start.shared), gaussian(start.shared, "prior_")
        before = as_state(q, LAPLACE) | as_state(prior, f"{LAPLACE}prior_")
        figures = {"modes": torch.tensor(count), "moved": shared["eta"].new_tensor(torch.inf)}
        return shared | search_result | before | figures, local | as_state(gaussian(start.local), LAPLACE)

    def combine(self, shared: State, messages: State, weights: torch.Tensor) -> State:
        """Combine as `FedEP`, and record the move of q."""
        after = super().combine(shared, messages, weights)
        return after | {"moved": largest_move(moments_of(gaussian(shared)), moments_of(gaussian(after)))}

    def settle(self, feedback: State, local: State) -> State:
        return super().settle(feedback, local) | {name: local[name] for name in local if name.startswith(LAPLACE)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return super().monitor(before, after) | {"modes": float(after["modes"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q has converged, or there are several modes, which no Gaussian approximates."""
        return figures[-1]["modes"] != 1 or super().converged(figures)


def nearest_of(start: Start) -> Start:
    """The particles' start: the Gaussian if it has converged at the only mode, or else the Laplace approximation."""
    shared = start.shared
    if f"{LAPLACE}eta" not in shared or is_at_rest(shared):
        return start
    before = as_state(gaussian(shared, LAPLACE)) | as_state(gaussian(shared, f"{LAPLACE}prior_"), "prior_")
    return Start(shared | before, as_state(gaussian(start.local, LAPLACE)))


def is_at_rest(found: State) -> bool:
    """Whether the Gaussian has converged at the only mode."""
    return "moved" in found and bool(found["modes"] == 1) and bool(found["moved"] < Nearest.tolerance)
