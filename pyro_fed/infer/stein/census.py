"""Where the posterior's mass is: weighted draws of a mixture that learns, round by round.

The Laplace approximation at each mode is not the posterior where this is bent (a banana), is a funnel, or has mass far
from any mode. Particles that start from it are whitened by the wrong covariance, and move slowly. So half of
`num_points` points are drawn around the modes, and half from a mixture fitted to draws of the prior. The clients send
their log-likelihoods there. With q = Σ_j n_j t_j, the density of all points drawn so far, the weights are

    w_s ∝ p(z_s) / q(z_s)

**The modes' approximations are enough** if they share most of their mass with the posterior. With l for their density,
and w and l / q normalised over the points, the mass shared is ∫ min(p, l), about Σ_s min(w_s, l_s / q_s). If it is at
least `fits`, particles start from the modes' Gaussians. There is one exception: a part of the mass larger than `beyond`
is so far from all modes that particles would not come there, as a slab's beside its spike, or that of a mode which no
climb has found.

**Otherwise** a mixture of Student-t's is fitted to the weighted points, the next points are drawn from it, and all are
weighed anew, until they are worth `worth` equal ones with a tail that can be trusted (Cornuet et al. 2012, *Adaptive
multiple importance sampling*; Cappé et al. 2008). While few points carry all the weight, the fit uses w_s^β, with the
largest β that leaves the points worth `fewest` a dimension.

Only values are needed, no derivatives: a client sends one number a point in each round.

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
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.scores import clients_log_likelihoods
from pyro_fed.infer.stein.modes import Modes, modes_of
from pyro_fed.ops.cholesky import equilibrated_cholesky
from pyro_fed.ops.importance import LARGEST, LARGEST_PARETO_K, flattened, smoothed
from pyro_fed.ops.student_mixtures import Mixture, fitted

#: The most parameters for which weights are tried.
MOST_DIM = 12

#: Points say too little to start from if they are worth fewer equal ones than this share of `worth`.
LEAST = 0.25
#: Draws of the prior for each component of the mixture that is fitted to them.
STARTS_A_COMPONENT = 12
#: A point is too far from a mode for particles to come there if it is more than √D plus so many of its SDs away.
FAR = 4.0
#: Log-likelihood of points where the data cannot be. It is finite, so that a sum over clients is.
IMPOSSIBLE = -1e300


@dataclass(frozen=True, kw_only=True)
class Census(Algorithm):
    """Weighted points of the posterior.

    Args:
        num_points: drawn a round.
        first_points: drawn in the first round; None takes a quarter of them where rows are many.
        num_starts: draws of the prior, at a run of the model each, to which a mixture is fitted.
        max_rounds: rounds at most.
        worth: points worth so many equal ones are enough: means are then known to 0.07 SD.
        fits: the modes' approximations are enough if they share at least so much of their mass with the posterior,
        beyond: and if at most so much of the posterior's mass is far from all modes.
        components: J of a fit.
        fit_steps: of expectation-maximisation.
        freedom: ν, a whole number.
        fewest: points a dimension that a fit is to rest on.
        temperature: the likelihood is raised to 1/temperature.
        min_curvature: as in `Modes`.
    """

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = frozenset({"census_value"})  # points where the data cannot be

    num_points: int = 1024
    first_points: int | None = None
    num_starts: int = 48
    max_rounds: int = 10
    worth: float = 200.0
    fits: float = 0.75
    beyond: float = 0.01
    components: int = 8
    fit_steps: int = 10
    freedom: int = 5
    fewest: float = 10.0
    temperature: float = 1.0
    min_curvature: float = 1e-6

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_points")
        check_at_least(self, STARTS_A_COMPONENT, "num_starts")
        check_at_least(self, 1, "max_rounds", "components", "fit_steps", "freedom")
        check_positive(self, "worth", "fits", "beyond", "fewest", "temperature", "min_curvature")

    def default_rounds(self, num_clients: int) -> int:
        """`max_rounds`; it stops when the points are worth enough."""
        return self.max_rounds

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for modes."""
        return Modes(min_curvature=self.min_curvature)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The first points: of the modes, and of a fit to draws of the prior."""
        start = required_start(start, self)
        count: int = chosen_setting(self, "first_points")
        half = count // 2
        draws = problem.init(self.num_starts, generator).double()
        even = torch.full((self.num_starts,), 1 / self.num_starts, dtype=torch.float64)
        modes = modes_as_mixture(start.shared)
        wide = fitted(
            draws, even, min(self.components, self.num_starts // STARTS_A_COMPONENT), self.fit_steps, generator
        )
        mixture = wide.shared_out(half)
        if len(modes.counts):
            spread = modes._replace(counts=0.5 * (modes.counts + 1 / len(modes.counts)))  # a small mode is seen too
            mixture = spread.shared_out(count - half).joined(mixture)
        seed = torch.randint(2**31, (), generator=generator)
        shared = start.shared | self._drawn(mixture.wider(self._inflation(problem.dim)).used(), seed)
        none = draws.new_zeros(0)
        shared |= {"census_points": draws[:0], "census_value": none, "census_weights": none, "census_seed": seed}
        figures = {"census_worth": 0.0, "census_k": torch.inf, "census_fits": 0.0, "census_beyond": 1.0}
        return shared | {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}, start.local

    def _inflation(self, dim: int) -> float:
        """How much wider than a component proposals are: √2 in one dimension, less in many, where width costs more."""
        return math.sqrt(1 + dim**-0.5)

    def _drawn(self, mixture: Mixture, seed: Tensor, before: Mixture | None = None) -> State:
        generator = seeding.torch_generator(int(seed), seeding.SERVER)
        trial = mixture.draws(self.freedom, generator)
        every = mixture if before is None else before.joined(mixture)
        return {"census_trial": trial, **{f"census_{name}": part for name, part in every._asdict().items()}}

    def download(self, shared: State, clients: Tensor) -> State:
        """The points."""
        return super().download({"census_trial": shared["census_trial"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """The log-likelihood at the points."""
        found = clients_log_likelihoods(problem, shared["census_trial"].to(problem.dtype), data)
        return {"value": found.nan_to_num(nan=IMPOSSIBLE, neginf=IMPOSSIBLE, posinf=IMPOSSIBLE)}, local, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the clients' values."""
        return {**shared, "census_new": messages["value"].sum(0) / self.temperature}

    def refine(self, problem: Problem, shared: State) -> State:
        """Weigh all points, and draw the next ones."""
        trial = shared["census_trial"]
        prior = problem.log_prior(trial.to(problem.dtype)).double()
        new = prior + shared["census_new"]
        points = torch.cat([shared["census_points"], trial])
        known = (new > IMPOSSIBLE / 2) & (new < LARGEST)
        value = torch.cat([shared["census_value"], torch.where(known, new, -torch.inf)])
        if not bool(value.isfinite().any()):
            return shared
        mixture = census_mixture(shared)
        log_q = mixture.log_density(points, self.freedom)
        found = smoothed((value - log_q).clamp_min(IMPOSSIBLE))
        modes = modes_as_mixture(shared)
        weighed = {"census_points": points, "census_value": value, "census_weights": found.weights}
        figures = {
            "census_worth": log_q.new_tensor(found.effective),
            "census_k": log_q.new_tensor(found.pareto_k),
            "census_fits": log_q.new_tensor(0.0),
            "census_beyond": log_q.new_tensor(1.0),
        }
        expected = modes.log_density(points, torch.inf) - log_q if len(modes.counts) else log_q.new_zeros(0)
        if bool(expected.isfinite().any()):  # a climb into a funnel's neck ends so narrow that no point is near
            figures["census_fits"] = torch.minimum(found.weights, torch.softmax(expected, 0)).sum()
            figures["census_beyond"] = found.weights[far_from(modes, points)].sum()
        shared = {**shared, **weighed, **figures}
        if self._enough(self._figures(shared)):
            return shared
        generator = seeding.torch_generator(int(shared["census_seed"]), seeding.SERVER, len(points))
        flat = flattened(value - log_q, min(self.fewest * problem.dim, 0.5 * len(trial)))
        fit = fitted(points, flat, self.components, self.fit_steps, generator).shared_out(self.num_points)
        seed = torch.randint(2**31, (), generator=generator)
        return {**shared, **self._drawn(fit.wider(self._inflation(problem.dim)).used(), seed, mixture)}

    def _enough(self, figures: dict[str, float]) -> bool:
        good = figures["worth"] >= self.worth and figures["k"] <= LARGEST_PARETO_K
        return good or (figures["fits"] >= self.fits and figures["beyond"] <= self.beyond)

    def _figures(self, shared: State) -> dict[str, float]:
        return {name: float(shared[f"census_{name}"]) for name in ("worth", "k", "fits", "beyond")}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """How many equal points all are worth, the shape of the weights' tail, and how well the modes fit, by two."""
        return self._figures(after)

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the modes fit, or the points are worth enough."""
        return self._enough(figures[-1])

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The points, (1, S, D)."""
        return shared["census_points"][None]


def modes_as_mixture(found: State) -> Mixture:
    """Laplace's approximation at each mode that `Modes` found; its counts are the shares."""
    modes, precisions, shares = modes_of(found, Modes.tolerance, Modes.same_mode)
    return Mixture(shares, modes, torch.linalg.cholesky(equilibrated_cholesky(precisions).inverse()))


def far_from(modes: Mixture, points: Tensor) -> Tensor:
    """Which points (S, D) are more than √D + `FAR` SDs from each mode: (S,)."""
    near = torch.zeros(len(points), dtype=torch.bool)
    for centre, factor in zip(modes.centres, modes.factors, strict=True):
        away = torch.linalg.solve_triangular(factor, (points - centre).mT, upper=False)
        near |= away.norm(dim=0) <= points.shape[1] ** 0.5 + FAR
    return ~near


def census_of(found: State) -> tuple[Tensor, Tensor] | None:
    """The points (S, D) and their weights (S,), where they say more than the modes; None where they do not."""
    if "census_points" not in found:
        return None
    if bool(found["census_fits"] >= Census.fits) and bool(found["census_beyond"] <= Census.beyond):
        return None
    if bool(found["census_worth"] < LEAST * Census.worth):
        return None
    return found["census_points"], found["census_weights"]


def census_mixture(shared: State) -> Mixture:
    """What all points so far were drawn from."""
    return Mixture(*(shared[f"census_{name}"] for name in Mixture._fields))
