"""The location of the posterior's mass: weighted draws of a mixture that adapts, round by round.

The Laplace approximation at each mode is wrong if the posterior is curved (a banana), is a funnel, or has mass far from
every mode. Particles that start from it are whitened by the wrong covariance, and move slowly. Half of `NUM_POINTS`
points are therefore drawn around the modes, and half from a mixture fitted to draws of the prior. The clients send
their log-likelihoods there. With q = Σ_j n_j t_j, the density of all points drawn so far, the weights are

    w_s ∝ p(z_s) / q(z_s)

**The modes' approximations suffice** if they share most of their mass with the posterior. With l their density, and w
and l / q normalised over the points, the shared mass is ∫ min(p, l), about Σ_s min(w_s, l_s / q_s). If it is at least
`MIN_SHARED_MASS`, particles start from the modes' Gaussians. The exception is a mass of more than `MAX_DISTANT_MASS`
that is so far from all modes that particles would not reach it, such as the slab beside a spike, or a mode that the
search has missed.

**Otherwise** adaptive multiple importance sampling (`ops.adaptive_importance`) follows in further rounds until the
points suffice (`SETTINGS`). While few points have all the weight, a fit uses `MIN_DRAWS` points per dimension.

Only values are needed, no derivatives: a client sends one number per point and round.

Letters: z `points`, log p `value`, n, m and F of t as in `ops.student`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, required_start
from pyro_fed.algorithm.message_limits import IMPOSSIBLE
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import MIN_DRAWS
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.derivatives import clients_log_likelihoods
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.stein.modes import Modes, modes_of
from pyro_fed.ops.adaptive_importance import FIT_STEPS, AdaptiveImportanceSampler, AdaptiveSettings
from pyro_fed.ops.importance import LARGEST_PARETO_K, MAX_LOG_DENSITY, MIN_SMOOTHED_DRAWS
from pyro_fed.ops.matrices import equilibrated_cholesky
from pyro_fed.ops.student import Mixture, fitted

#: Points of a round.
NUM_POINTS = 1024
#: Sufficient effective number of points: the standard error of means is then 0.07 SD.
SETTINGS = AdaptiveSettings(enough=200, longest_tail=LARGEST_PARETO_K)
#: Smallest mass that the modes' approximations share with the posterior, and largest mass far from all modes, for which
#: these approximations suffice.
MIN_SHARED_MASS, MAX_DISTANT_MASS = 0.75, 0.01
#: Draws of the prior, each of which runs the model, and components that are fitted to them.
PRIOR_DRAWS, PRIOR_COMPONENTS = 48, 4
#: Particles do not reach a point that is more than √D plus this many SDs away from a mode.
DISTANT_SDS = 4.0
#: Figures of a round, entries of the server's state.
FIGURES = ("effective", "pareto_k", "shared_mass", "distant_mass")
#: Of the points' entries in a state.
PREFIX = "weighted_"


class WeightedPoints(NamedTuple):
    """The server's state, besides the results of the search for modes; its entries begin with `PREFIX`."""

    trial: Tensor  # points whose log-likelihoods the clients are asked for, (T, D)
    points: Tensor  # z, those before, (S, D)
    value: Tensor  # log p there, (S,)
    proposals: Mixture  # the components of q, with the number of points of each
    weights: Tensor  # w of the points, (S,), with sum one
    seed: Tensor  # of the next points, ()
    effective: Tensor  # the points' effective number, ()
    pareto_k: Tensor  # Pareto's k of their weights, ()
    shared_mass: Tensor  # the mass that the modes' approximations share with the posterior, ()
    distant_mass: Tensor  # the posterior's mass that is far from all modes, ()

    @property
    def sampler(self) -> AdaptiveImportanceSampler:
        """The sampler that the points are those of."""
        return AdaptiveImportanceSampler(SETTINGS, self.proposals, self.trial, self.points, self.value)


def weighted_points(shared: State) -> WeightedPoints:
    """The points in the server's state."""
    return entries_as(WeightedPoints, shared, PREFIX)


@dataclass(frozen=True, kw_only=True)
class AdaptiveImportance(Algorithm):
    """Weighted points of the posterior."""

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = frozenset({"weighted_value"})  # points where the data cannot be

    # number of points of the first round; None takes a quarter of `NUM_POINTS` if rows are many
    search: ClassVar[type[Modes]] = Modes

    first_points: int | None = None
    temperature: float = 1.0  # the likelihood is raised to 1/temperature

    def __post_init__(self) -> None:
        check_at_least(self, 2, "first_points", allow_none=True)
        check_positive(self, "temperature")

    def default_rounds(self, num_clients: int) -> int:
        return 10

    def warm_start(self, problem: Problem) -> Algorithm | None:
        return self.search()

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
        wide = fitted(draws, even, PRIOR_COMPONENTS, FIT_STEPS, generator)
        mixture = wide.shared_out(half)
        if len(modes.counts):
            spread = modes._replace(
                counts=0.5 * (modes.counts + 1 / len(modes.counts))
            )  # so that small modes get points as well
            mixture = spread.shared_out(count - half).joined(mixture)
        seed = torch.randint(2**31, (), generator=generator)
        mixture = mixture.wider(widening(problem.dim))
        sampler = AdaptiveImportanceSampler.start(SETTINGS, mixture, _generator(seed))
        none, whole, infinite = (torch.tensor(value, dtype=torch.float64) for value in (0.0, 1.0, torch.inf))
        parts = sampler.trial, sampler.points, sampler.log_density, sampler.proposals
        points = WeightedPoints(
            *parts, draws.new_zeros(0), seed, effective=none, pareto_k=infinite, shared_mass=none, distant_mass=whole
        )
        return start.shared | as_entries(points, PREFIX), start.local

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({f"{PREFIX}trial": weighted_points(shared).trial}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        log_lik = clients_log_likelihoods(problem, shared["weighted_trial"].to(problem.dtype), data)
        return {"value": log_lik.nan_to_num(nan=IMPOSSIBLE, neginf=IMPOSSIBLE, posinf=IMPOSSIBLE)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return {**shared, "weighted_new": messages["value"].sum(0) / self.temperature}

    def refine(self, problem: Problem, shared: State) -> State:
        """Weight all points, and draw the next ones."""
        before = weighted_points(shared)
        new = problem.log_prior(before.trial.to(problem.dtype)).double() + shared["weighted_new"]
        known = (new > IMPOSSIBLE / 2) & (new < MAX_LOG_DENSITY)
        sampler = before.sampler.tell(torch.where(known, new, -torch.inf))
        if sampler.all_impossible:
            return shared
        smoothed = sampler.smoothed
        weights, figures = smoothed.weights, (smoothed.effective, smoothed.pareto_k, *_fit(sampler, shared))
        effective, pareto_k, shared_mass, distant_mass = (weights.new_tensor(figure) for figure in figures)
        after = before._replace(
            weights=weights, effective=effective, pareto_k=pareto_k, shared_mass=shared_mass, distant_mass=distant_mass
        )
        if not are_enough(*figures):
            generator = seeding.torch_generator(int(before.seed), seeding.SERVER, len(sampler.points))
            wanted = min(MIN_DRAWS * problem.dim, 0.5 * len(sampler.trial))
            fit = sampler.refit(wanted, generator).shared_out(NUM_POINTS)
            seed = torch.randint(2**31, (), generator=generator)
            sampler = sampler.draw(fit.wider(widening(problem.dim)), _generator(seed))
        after = after._replace(
            trial=sampler.trial, points=sampler.points, value=sampler.log_density, proposals=sampler.proposals
        )
        return shared | as_entries(after, PREFIX)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The effective number of points, the shape of the weights' tail, and the fit of the modes by two measures."""
        return {name: float(getattr(weighted_points(after), name)) for name in FIGURES}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return are_enough(*(figures[-1][name] for name in FIGURES))

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return weighted_points(shared).points[None]


def modes_as_mixture(found: State) -> Mixture:
    """The mixture of Laplace's approximations at the modes that `Modes` found, with the shares as counts."""
    modes, precisions, shares = modes_of(found, Modes.tolerance, Modes.same_mode)
    return Mixture(shares, modes, torch.linalg.cholesky(equilibrated_cholesky(precisions).inverse()))


def are_enough(effective: float, pareto_k: float, shared_mass: float, distant_mass: float) -> bool:
    """Whether the points suffice, by a round's figures."""
    return SETTINGS.are_met(effective, pareto_k) or _modes_fit(shared_mass, distant_mass)


def _fit(sampler: AdaptiveImportanceSampler, shared: State) -> tuple[float, float]:
    """The mass that the modes' approximations share with the posterior, and the mass that is far from all modes."""
    weights, modes = sampler.smoothed.weights, modes_as_mixture(shared)
    if not len(modes.counts):
        return 0.0, 1.0
    expected = modes.log_density(sampler.points, torch.inf) - sampler.log_proposals
    if not bool(expected.isfinite().any()):  # a mode in a funnel's neck is so narrow that no point is near it
        return 0.0, 1.0
    shared_mass = torch.minimum(weights, torch.softmax(expected, 0)).sum()
    near = torch.zeros(len(weights), dtype=torch.bool)
    for centre, factor in zip(modes.centres, modes.factors, strict=True):
        away = torch.linalg.solve_triangular(factor, (sampler.points - centre).mT, upper=False)
        near |= away.norm(dim=0) <= sampler.points.shape[1] ** 0.5 + DISTANT_SDS
    return float(shared_mass), float(weights[~near].sum())


def _modes_fit(shared_mass: float, distant_mass: float) -> bool:
    return shared_mass >= MIN_SHARED_MASS and distant_mass <= MAX_DISTANT_MASS


def weighted_points_of(found: State) -> tuple[Tensor, Tensor] | None:
    """The points (S, D) and their weights (S,) if the modes' approximations do not suffice; otherwise None."""
    if "weighted_points" not in found:
        return None
    known = weighted_points(found)
    if _modes_fit(float(known.shared_mass), float(known.distant_mass)) or bool(known.effective < MIN_SMOOTHED_DRAWS):
        return None
    return known.points, known.weights


def widening(dim: int) -> float:
    """Factor by which proposals are wider than a fit: √2 in one dimension, less in many, where width costs more."""
    return math.sqrt(1 + dim**-0.5)


def _generator(seed: Tensor) -> torch.Generator:
    """The generator of the next points."""
    return seeding.torch_generator(int(seed), seeding.SERVER)
