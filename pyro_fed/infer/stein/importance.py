"""The location of the posterior's mass: weighted draws of a mixture that adapts, round by round.

The Laplace approximation at each mode is wrong if the posterior is curved (a banana), is a funnel, or has mass far from
any mode. Particles that start from it are whitened by the wrong covariance, and move slowly. So half of `POINTS` points
are drawn around the modes, and half from a mixture fitted to draws of the prior. The clients send their log-likelihoods
there. With q = Σ_j n_j t_j, the density of all points drawn so far, the weights are

    w_s ∝ p(z_s) / q(z_s)

**The modes' approximations are enough** if they share most of their mass with the posterior. With l for their density,
and w and l / q normalised over the points, the mass shared is ∫ min(p, l), about Σ_s min(w_s, l_s / q_s). If it is at
least `FITS`, particles start from the modes' Gaussians. There is one exception: a part of the mass larger than
`LARGEST_FAR_MASS` is so far from all modes that particles would not reach it, such as a slab's beside its spike, or
that of a mode which the search has missed.

**Otherwise** this is adaptive multiple importance sampling (`ops.adaptive_importance`), driven by rounds, until the
points are enough (`SETTINGS`). While few points carry all the weight, a fit uses `A_DIMENSION` points for each
dimension.

Only values are needed, no derivatives: a client sends one number for each point in each round.

Letters: z `census_points`, p `census_value` (log), n, m and F of t as in `ops.student_mixtures`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.derivatives import clients_log_likelihoods
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.stein.modes import Modes, modes_of
from pyro_fed.ops.adaptive_importance import COMPONENTS, FIT_STEPS, AdaptiveImportanceSampler, AdaptiveSettings
from pyro_fed.ops.cholesky import equilibrated_cholesky
from pyro_fed.ops.importance import LARGEST, LARGEST_PARETO_K
from pyro_fed.ops.student_mixtures import Mixture, fitted

#: Largest number of parameters for which weights are tried.
MOST_DIM = 12

#: Points of a round, and the largest number of rounds.
POINTS, ROUNDS = 1024, 10
#: Effective number of points that is enough: means are then known to 0.07 SD.
SETTINGS = AdaptiveSettings(enough=200, longest_tail=LARGEST_PARETO_K)
#: Effective number of points below which they are too uninformative for a start.
LEAST_EFFECTIVE_POINTS = 50
#: Points for each dimension that a fit uses.
A_DIMENSION = 10.0
#: The modes' approximations are enough if they share at least this much of their mass with the posterior, and at most
#: this much of the posterior's mass is far from all modes.
FITS, LARGEST_FAR_MASS = 0.75, 0.01
#: Draws of the prior, each of which runs the model, and their number for each component that is fitted to them.
PRIOR_DRAWS, A_COMPONENT = 48, 12
#: A point is too far from a mode for particles to reach it if it is more than √D plus this many of its SDs away.
FAR_SDS = 4.0
#: Log-likelihood of impossible points. It is finite, so that a sum over clients is.
IMPOSSIBLE = -1e300


@dataclass(frozen=True, kw_only=True)
class AdaptiveImportance(Algorithm):
    """Weighted points of the posterior.

    Args:
        first_points: number of points of the first round; None takes a quarter of `POINTS` if rows are many.
        temperature: the likelihood is raised to 1/temperature.
    """

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = frozenset({"census_value"})  # points where the data cannot be

    first_points: int | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 2, "first_points", allow_none=True)
        check_positive(self, "temperature")

    def default_rounds(self, num_clients: int) -> int:
        """`ROUNDS` rounds; the run ends when there are enough effective points."""
        return ROUNDS

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for modes."""
        return Modes()

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Draw the first points: around the modes, and from a fit to draws of the prior."""
        start = required_start(start, self)
        count: int = chosen_setting(self, "first_points")
        half = count // 2
        draws = problem.init(PRIOR_DRAWS, generator).double()
        even = torch.full((PRIOR_DRAWS,), 1 / PRIOR_DRAWS, dtype=torch.float64)
        modes = modes_as_mixture(start.shared)
        wide = fitted(draws, even, min(COMPONENTS, PRIOR_DRAWS // A_COMPONENT), FIT_STEPS, generator)
        mixture = wide.shared_out(half)
        if len(modes.counts):
            spread = modes._replace(counts=0.5 * (modes.counts + 1 / len(modes.counts)))  # a small mode is seen too
            mixture = spread.shared_out(count - half).joined(mixture)
        seed = torch.randint(2**31, (), generator=generator)
        mixture = mixture.wider(widening(problem.dim))
        sampler = AdaptiveImportanceSampler.start(SETTINGS, mixture, _generator(seed))
        figures = {"census_worth": 0.0, "census_k": torch.inf, "census_fits": 0.0, "census_beyond": 1.0}
        shared = start.shared | as_state(sampler) | {"census_weights": draws.new_zeros(0), "census_seed": seed}
        return shared | {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}, start.local

    def download(self, shared: State, clients: Tensor) -> State:
        """The points, which clients receive."""
        return super().download({"census_trial": shared["census_trial"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Compute the log-likelihood at the points."""
        found = clients_log_likelihoods(problem, shared["census_trial"].to(problem.dtype), data)
        return {"value": found.nan_to_num(nan=IMPOSSIBLE, neginf=IMPOSSIBLE, posinf=IMPOSSIBLE)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the clients' values."""
        return {**shared, "census_new": messages["value"].sum(0) / self.temperature}

    def refine(self, problem: Problem, shared: State) -> State:
        """Weight all points, and draw the next ones."""
        sampler = sampler_of(shared)
        new = problem.log_prior(sampler.trial.to(problem.dtype)).double() + shared["census_new"]
        known = (new > IMPOSSIBLE / 2) & (new < LARGEST)
        sampler = sampler.tell(torch.where(known, new, -torch.inf))
        if sampler.all_impossible:
            return shared
        found, modes = sampler.smoothed, modes_as_mixture(shared)
        figures = {"worth": found.effective, "k": found.pareto_k, "fits": 0.0, "beyond": 1.0}
        expected = modes.log_density(sampler.points, torch.inf) - sampler.log_proposals if len(modes.counts) else None
        if expected is not None and bool(expected.isfinite().any()):
            # None is finite where a climb into a funnel's neck ends so narrow that no point is near.
            figures["fits"] = float(torch.minimum(found.weights, torch.softmax(expected, 0)).sum())
            figures["beyond"] = float(found.weights[far_from(modes, sampler.points)].sum())
        as_tensors = {f"census_{name}": found.weights.new_tensor(value) for name, value in figures.items()}
        shared = {**shared, "census_weights": found.weights, **as_tensors}
        if not are_enough(figures):
            generator = seeding.torch_generator(int(shared["census_seed"]), seeding.SERVER, len(sampler.points))
            worth = min(A_DIMENSION * problem.dim, 0.5 * len(sampler.trial))
            fit = sampler.refit(worth, generator).shared_out(POINTS)
            seed = torch.randint(2**31, (), generator=generator)
            sampler = sampler.draw(fit.wider(widening(problem.dim)), _generator(seed))
        return shared | as_state(sampler)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The effective number of points, the shape of the weights' tail, and the fit of the modes by two measures."""
        return {name: float(after[f"census_{name}"]) for name in ("worth", "k", "fits", "beyond")}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the modes fit, or there are enough effective points."""
        return are_enough(figures[-1])

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The points, (1, S, D)."""
        return shared["census_points"][None]


def modes_as_mixture(found: State) -> Mixture:
    """The mixture of Laplace's approximations at the modes that `Modes` found, with the shares as counts."""
    modes, precisions, shares = modes_of(found, Modes.tolerance, Modes.same_mode)
    return Mixture(shares, modes, torch.linalg.cholesky(equilibrated_cholesky(precisions).inverse()))


def far_from(modes: Mixture, points: Tensor) -> Tensor:
    """Whether points (S, D) are more than √D + `FAR_SDS` SDs from each mode: (S,)."""
    near = torch.zeros(len(points), dtype=torch.bool)
    for centre, factor in zip(modes.centres, modes.factors, strict=True):
        away = torch.linalg.solve_triangular(factor, (points - centre).mT, upper=False)
        near |= away.norm(dim=0) <= points.shape[1] ** 0.5 + FAR_SDS
    return ~near


def are_enough(figures: dict[str, float]) -> bool:
    """Whether no more points are needed, by a round's figures."""
    return SETTINGS.are_met(figures["worth"], figures["k"]) or _modes_fit(figures["fits"], figures["beyond"])


def _modes_fit(fits: float, beyond: float) -> bool:
    return fits >= FITS and beyond <= LARGEST_FAR_MASS


def weighted_points_of(found: State) -> tuple[Tensor, Tensor] | None:
    """The points (S, D) and their weights (S,), if they improve on the modes; otherwise None."""
    if "census_points" not in found or _modes_fit(float(found["census_fits"]), float(found["census_beyond"])):
        return None
    if bool(found["census_worth"] < LEAST_EFFECTIVE_POINTS):
        return None
    return found["census_points"], found["census_weights"]


def widening(dim: int) -> float:
    """Factor by which proposals are wider than a fit: √2 in one dimension, less in many, where width costs more."""
    return math.sqrt(1 + dim**-0.5)


def as_state(sampler: AdaptiveImportanceSampler) -> State:
    """The sampler's tensors under their names in the state."""
    proposals = {f"census_{name}": part for name, part in sampler.proposals._asdict().items()}
    points = {"census_trial": sampler.trial, "census_points": sampler.points, "census_value": sampler.log_density}
    return {**points, **proposals}


def sampler_of(shared: State) -> AdaptiveImportanceSampler:
    """The sampler with the tensors of a state."""
    proposals = Mixture(*(shared[f"census_{name}"] for name in Mixture._fields))
    points = (shared[f"census_{name}"] for name in ("trial", "points", "value"))
    return AdaptiveImportanceSampler(SETTINGS, proposals, *points)


def _generator(seed: Tensor) -> torch.Generator:
    """The generator of the next points."""
    return seeding.torch_generator(int(seed), seeding.SERVER)
