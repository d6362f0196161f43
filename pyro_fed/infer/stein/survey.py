"""The start of particles: points under the posterior's modes, and the clients' scores there, in one round.

    "gaussian"   standardised Sobol points under a Gaussian q = N(m, A A'). With at most 100 parameters it is
                 `FedEP`'s, the nearest to the posterior in KL(q || p); with more it is the Laplace approximation.
    "modes"      the same under the Laplace approximation at each mode that `Modes` finds; each mode gets a number of
                 points in proportion to its evidence. Where there is one mode, and the model has more dimensions than
                 importance weights take, the points are under the Gaussian nearest in KL(q || p) (`Nearest`). Where
                 `AdaptiveImportance` finds that the posterior is elsewhere, its weighted points are resampled, and
                 whitened by their own moments.
    "prior"      draws of the prior. The surrogates may not fit there, so take few local steps.
    "apart"      draws of the prior, in units of the prior's SDs and without surrogates. For densities without a useful
                 mode, as those of neural networks, where every particle finds a basin of its own.
    "checked"    "gaussian", unless m is no maximum: then "apart". Costs a round more.

Coordinates are whitened by q, or by the Gaussian at the best mode if there are several. The clients' surrogates are its
sites; after importance sampling each client's surrogate is an equal share of the Gaussian.

**The check.** The point where all weights are zero is stationary for a network. Second derivatives do not show that it
is not a maximum: those of its ReLUs are zero there, and a Fisher matrix is never negative. So all clients send scores s
at `probe` times the standard points Z = U S V'. If H is the curvature, s = -H z, so that H is known on the span of the
points,

    V'HV ≈ -S⁻¹ U' s(probe Z) V / probe        (one where q is right, never negative for a log-concave density)

and m is no maximum if the smallest eigenvalue is below -`saddle`.

**Steep points.** Some points may be so steep that particles would become non-finite, as in the neck of a horseshoe's
funnel, whose mode is infinitely narrow. Such points are moved half-way to the centre, round by round, until none is
steep. Weighted points are not moved: they are where the posterior is, however narrow its modes are.

Letters: z `white`, m and A as in `coordinates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State, select
from pyro_fed.codes import sentences
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.point_sites import PointSites
from pyro_fed.infer.ep.settings import warm_sites
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.infer.stein.concave import OneMode
from pyro_fed.infer.stein.contributions import SurveyContributions
from pyro_fed.infer.stein.importance import LEAST_EFFECTIVE_POINTS, AdaptiveImportance, weighted_points_of
from pyro_fed.infer.stein.modes import Modes, modes_of
from pyro_fed.infer.stein.nearest import Nearest, is_at_rest, nearest_of
from pyro_fed.infer.stein.starting_points import (
    equal_sites,
    gaussian_points,
    lowest_curvature,
    mixture_points,
    unit_coordinates,
    whitened_resample,
)
from pyro_fed.ops.gaussian import Gaussian, ImproperGaussianError
from pyro_fed.ops.importance import flattened
from pyro_fed.ops.whitening import Coordinates, site_scores

#: Largest ratio of a Gaussian's width to the prior's; a wider Gaussian is not used.
WIDEST_SD_RATIO = 10.0
#: A whitened score is too steep if it is longer than `STEEP` times √D, which is the Gaussian's own where most of its
#: mass is. `MOST_APPROACH_ROUNDS`: largest number of rounds in which such points are moved towards the centre.
STEEP, MOST_APPROACH_ROUNDS = 100.0, 10
#: If all clients' scores are more than this many numbers (40 MB in double precision), they are computed client by
#: client.
AT_ONCE = 5_000_000

#: The error if the phase before has found no Gaussian for the start.
NOWHERE = (
    "particles have nowhere to begin: the Gaussian of the phase before, whose coordinates they move in, is no "
    "distribution. Its precision is not positive definite or not a number, as happens if no mode was found. To see "
    "where the search went, call pf.run with FedLaplace on the same federation. A flat prior may be the cause, or a "
    "density that is not a number in parts of its support"
)
Begin = Literal["gaussian", "modes", "prior", "apart", "checked"]
BEGINNINGS = get_args(Begin)


@dataclass(frozen=True, kw_only=True)
class Survey(Algorithm):
    """Starting points, and all clients' scores there.

    Args:
        num_particles: N.
        begin: "gaussian", "modes", "prior", "apart" or "checked".
        source: of the points: "ep", "laplace" (Gaussians), "points" (sites at the point of an averaging), "nearest" or
            "importance" (of modes).
        temperature: the likelihood is raised to 1/temperature.
        probe: distance of the check's points, in SDs of q.
        saddle: upward curvature, in units of q's, that makes a point no maximum.
    """

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    num_particles: int = 100
    begin: Begin = "gaussian"
    source: Literal["auto", "ep", "points", "laplace", "nearest", "importance"] = "auto"
    temperature: float = 1.0
    probe: float = 0.1
    saddle: float = 0.5

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_particles")
        check_choice(self, "begin", BEGINNINGS)
        check_positive(self, "temperature", "probe", "saddle")

    def default_rounds(self, num_clients: int) -> int:
        """One round, one more for the check, and those in which points are moved; the run ends when none is steep."""
        return (2 if self.begin == "checked" else 1) + MOST_APPROACH_ROUNDS

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The number of points that are moved closer for the next round, or all of them after a check."""
        return {"steep": float(after["steep"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether no point is steep, or all rounds for moving them are over."""
        return figures[-1]["steep"] == 0 or len(figures) > MOST_APPROACH_ROUNDS

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The Gaussian, or the search for modes, by the setting `source`."""
        made: dict[str, Callable[[], Algorithm]] = {
            "ep": self.ep,
            "points": self.point_sites,
            "laplace": self.laplace,
            "nearest": self.nearest,
            "importance": self.importance,
        }
        return made[chosen_setting(self, "source")]()

    def point_sites(self) -> Algorithm:
        """Diagonal sites at the point that averaging finds, for a large model."""
        return PointSites()

    def laplace(self) -> Algorithm:
        """Laplace's approximation at one mode."""
        return FedLaplace()

    def nearest(self) -> Algorithm:
        """The search for modes, each with its Laplace approximation, and the Gaussian nearest to a single one."""
        return Nearest()

    def importance(self) -> Algorithm:
        """Weighted points, after the search for modes."""
        return AdaptiveImportance(temperature=self.temperature)

    def ep(self) -> Algorithm:
        """The Gaussian nearest to the posterior."""
        return FedEP()

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the points, with the sites in whitened coordinates."""
        start = nearest_of(required_start(start, self))
        _, sites, prior = warm_sites(start)
        sites = sites.power(1.0 / self.temperature)
        q = sites.product_over(0).product(prior)
        if not bool(q.is_proper()):
            said = f"{NOWHERE}. Here {sentences.SCORES_JUMP}" if problem.traits.non_smooth_scores else NOWHERE
            raise ImproperGaussianError(said)
        coordinates = Coordinates.of(q)
        white = coordinates.site(sites)
        seed = int(torch.randint(2**31, (), generator=generator))
        drawn = self.num_particles if self.begin in ("prior", "apart", "checked") else 0
        draws = problem.init(drawn, generator).double() if drawn else coordinates.mean.new_zeros(0, problem.dim)
        if self.begin == "apart":
            coordinates = unit_coordinates(coordinates, draws)
        weighted = self._weighted_points(problem, coordinates, start.shared, generator)
        if weighted is None:
            points, shares = self._points(coordinates, draws, start.shared, seed)
        else:
            coordinates, model_points = whitened_resample(*weighted, self.num_particles, generator)
            points, shares = coordinates.white(model_points), torch.ones(1, dtype=torch.float64)
            white = equal_sites(num_clients, coordinates)
        shared = {
            "white": points,
            "draws": draws,
            "apart": torch.tensor(float(self.begin == "apart"), dtype=torch.float64),
            "census": torch.tensor(weighted is not None),
            "near": torch.tensor(self.begin == "modes" and weighted is None and is_at_rest(start.shared)),
            "checking": torch.tensor(self.begin == "checked"),
            "steep": torch.zeros((), dtype=torch.int64),
            "settled": torch.tensor(self.begin == "modes" and weighted_points_of(start.shared) is not None),
            "scores": torch.zeros_like(points),
            "shares": shares,
            **as_state(white.product_over(0)),
            **coordinates._asdict(),
        }
        # A large model's scores are many: no room is taken for them before they are known.
        count = len(points) if num_clients * points.numel() <= AT_ONCE else 0
        unknown = points.new_zeros(num_clients, count, problem.dim, dtype=problem.traits.scores_dtype)
        return shared, as_state(white) | {"scores": unknown}

    def _weighted_points(
        self, problem: Problem, coordinates: Coordinates, found: State, generator: torch.Generator
    ) -> tuple[Tensor, Tensor] | None:
        """Weighted points for a start in place of the modes' Gaussians; None if these are good enough.

        A Gaussian far wider than the prior is not: a mode search in a funnel ends where the density is flat. Points
        between prior and posterior are then better, even with a small effective number.
        """
        if self.begin != "modes":
            return None
        better = weighted_points_of(found)
        if better is not None:
            return better
        draws = problem.init(self.num_particles, generator, checked=False).double()
        factor = coordinates.factor
        sd = factor.norm(dim=1) if factor.dim() == 2 else factor
        if bool((sd <= WIDEST_SD_RATIO * draws.std(0)).all()):
            return None
        if "census_points" in found:
            return found["census_points"], flattened(found["census_weights"].log(), LEAST_EFFECTIVE_POINTS)
        return draws, torch.full((len(draws),), 1 / len(draws), dtype=torch.float64)

    def _points(self, coordinates: Coordinates, draws: Tensor, found: State, seed: int) -> tuple[Tensor, Tensor]:
        """Whitened starting points (N, D), and the modes' shares of them; one share if there is one mode."""
        whole = torch.ones(1, dtype=torch.float64)
        if self.begin in ("prior", "apart"):
            return coordinates.white(draws), whole
        if self.begin == "modes" and not is_at_rest(found):
            modes, precisions, shares = modes_of(found, Modes.tolerance, Modes.same_mode)
            if len(modes):
                return coordinates.white(mixture_points(modes, precisions, shares, self.num_particles, seed)), shares
            # No search has reached a maximum, as in a funnel, which has none: the points are around the warm start's q.
        points = gaussian_points(self.num_particles, len(coordinates.mean), seed).to(coordinates.mean)
        return (self.probe * points if self.begin == "checked" else points), whole

    def download(self, shared: State, clients: Tensor) -> State:
        """The points and the coordinates, which clients receive."""
        return super().download({name: shared[name] for name in ("white", "mean", "factor")}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Compute likelihood scores in whitened coordinates, at all points; client by client if they are many."""
        if shared["white"].numel() <= AT_ONCE:
            scores = self._white_scores(problem, shared, data)
        else:
            scores = shared["white"].new_empty(shared["white"].shape, dtype=problem.traits.scores_dtype)
            for client in range(len(scores)):
                own = slice(client, client + 1)
                scores[own] = self._white_scores(problem, select(shared, own), data.of(own))
        return {"scores": scores}, {**local, "scores": scores}, {}

    def _white_scores(self, problem: Problem, shared: State, data: ClientData) -> Tensor:
        coordinates = Coordinates(shared["mean"], shared["factor"])
        points = coordinates.model(shared["white"]).to(problem.dtype)
        found = clients_likelihood_scores(problem, points, data)
        return (coordinates.pull(found.double()) / self.temperature).to(problem.traits.scores_dtype)

    def contributions(self) -> Contributions:
        """The clients' scores, which are compared with their sites'."""
        return SurveyContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the clients' scores."""
        return {**shared, "scores": messages["scores"].sum(0)}

    def refine(self, problem: Problem, shared: State) -> State:
        """Compute the points of the next round: after the check, or if some are too steep."""
        coordinates = Coordinates(shared["mean"], shared["factor"])
        prior = prior_scores(problem, coordinates.model(shared["white"]).to(problem.dtype)).double()
        scores = shared["scores"] + coordinates.pull(prior)
        if not bool(shared["checking"]):
            return self._less_steep(shared, scores)
        lowest = lowest_curvature(shared["white"], scores)
        chosen = {**shared, "white": shared["white"] / self.probe, "checking": torch.zeros_like(shared["checking"])}
        chosen["steep"] = torch.full_like(shared["steep"], len(scores))
        if lowest >= -self.saddle:
            return chosen
        units = unit_coordinates(coordinates, shared["draws"])
        apart = {"white": units.white(shared["draws"]), "apart": torch.ones_like(shared["apart"])}
        return {**chosen, **apart, **units._asdict()}

    def _less_steep(self, shared: State, scores: Tensor) -> State:
        """Steep points moved half-way to the centre; draws of the prior and weighted points stay unchanged."""
        steep = ~(scores.norm(dim=1) <= STEEP * scores.shape[1] ** 0.5)  # NaN counts as steep
        if bool(shared["apart"]) or self.begin == "prior" or bool(shared["settled"]):
            steep = torch.zeros_like(steep)
        white = torch.where(steep[:, None], shared["white"] / 2, shared["white"])
        return {**shared, "white": white, "steep": steep.sum()}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The points, (1, N, D)."""
        return Coordinates(shared["mean"], shared["factor"]).model(shared["white"])[None]


def residuals_at(scores: Tensor, sites: Gaussian, white: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Clients' scores (C, N, D) less their sites' at the particles, in `dtype`, and their sum in double precision."""
    if scores.numel() <= AT_ONCE:
        residual = scores - site_scores(sites.precision, sites.eta, white)
        return residual.to(dtype), residual.sum(0)
    kept, total = scores.new_empty(scores.shape, dtype=dtype), torch.zeros_like(white)
    for into, own, precision, eta in zip(kept, scores, sites.precision, sites.eta, strict=True):
        one = own - site_scores(precision, eta, white)
        into.copy_(one)
        total += one
    return kept, total


@dataclass(frozen=True, kw_only=True)
class PooledLaplace(FedLaplace):
    """Newton's method on the pooled data."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledPointSites(PointSites):
    """A diagonal site of the pooled data at the point of an averaging."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledEP(FedEP):
    """`FedEP` with a single client, which holds all rows."""

    pooled: ClassVar[bool] = True

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """Newton's method on the pooled data, or if the model is large the point that averaging finds."""
        if self.start == "fedavg":
            return self.point_sites()
        return PooledLaplace()

    def point_sites(self) -> Algorithm:
        """A diagonal site of the pooled data at the point that averaging finds."""
        return PooledPointSites()


@dataclass(frozen=True, kw_only=True)
class PooledOneMode(OneMode):
    """Whether the pooled data's posterior has one mode."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledModes(Modes):
    """Modes of the pooled data's posterior."""

    pooled: ClassVar[bool] = True

    def newton(self) -> Algorithm:
        """The search for one mode of the pooled data."""
        return PooledLaplace()

    def question(self) -> Algorithm:
        """The check whether the pooled data's posterior has one mode."""
        return PooledOneMode(newton=self.newton())


@dataclass(frozen=True, kw_only=True)
class PooledNearest(Nearest):
    """The Gaussian nearest to the pooled data's posterior."""

    pooled: ClassVar[bool] = True

    def modes(self) -> Algorithm:
        """The search for modes of the pooled data's posterior."""
        return PooledModes()


@dataclass(frozen=True, kw_only=True)
class PooledAdaptiveImportance(AdaptiveImportance):
    """Weighted points of the pooled data's posterior."""

    pooled: ClassVar[bool] = True

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The search for modes of the pooled data's posterior."""
        return PooledModes()


@dataclass(frozen=True, kw_only=True)
class PooledSurvey(Survey):
    """The survey of the pooled data."""

    pooled: ClassVar[bool] = True

    def laplace(self) -> Algorithm:
        """Laplace's approximation of the pooled data."""
        return PooledLaplace()

    def point_sites(self) -> Algorithm:
        """A diagonal site of the pooled data at the point that averaging finds."""
        return PooledPointSites()

    def ep(self) -> Algorithm:
        """The Gaussian nearest to the pooled data's posterior."""
        return PooledEP()

    def nearest(self) -> Algorithm:
        """Modes of the pooled data's posterior, and the Gaussian nearest to one."""
        return PooledNearest()

    def importance(self) -> Algorithm:
        """Weighted points of the pooled data's posterior."""
        return PooledAdaptiveImportance(temperature=self.temperature)
