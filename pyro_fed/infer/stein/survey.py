"""The start of particles: points under the posterior's modes, and the clients' scores there, in one round.

    "gaussian"   standardised Sobol points under a Gaussian q = N(m, A A'). With at most 100 parameters it is
                 `FedEP`'s, the nearest to the posterior in KL(q || p); with more it is the Laplace approximation.
    "modes"      the same under the Laplace approximation at each mode that `Modes` finds; each mode gets a number of
                 points in proportion to its evidence. Where there is one mode, and the model has more dimensions than
                 importance weights take, the points are under the Gaussian nearest in KL(q || p) (`Nearest`). Where
                 `AdaptiveImportance` finds that the posterior is elsewhere, its weighted points are resampled, and
                 whitened by their own moments.
    "prior"      draws of the prior. The surrogates may not fit there, so use few local steps.
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

**Steep points.** At some points the score may be so large that particles would become infinite or NaN, as in the neck
of a horseshoe's funnel, whose mode is infinitely narrow. Such points are moved half-way to the centre in each round
until none is steep. Weighted points are not moved, since they follow the posterior even if its modes are narrow.

Letters: z `white`, m and A as in `coordinates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.codes import sentences
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.point_sites import PointSites
from pyro_fed.infer.ep.settings import sites_of_laplace
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.stein.contributions import SurveyContributions
from pyro_fed.infer.stein.importance import (
    AdaptiveImportance,
    weighted_points,
    weighted_points_of,
)
from pyro_fed.infer.stein.modes import Modes, Nearest, is_at_rest, modes_of, nearest_of
from pyro_fed.ops.gaussian import FullGaussian, Gaussian, ImproperGaussianError
from pyro_fed.ops.importance import MIN_SMOOTHED_DRAWS, flattened, systematic
from pyro_fed.ops.memory import fits_in_memory
from pyro_fed.ops.points import MOST_SOBOL_DIMS, SOBOL_HALF_CELL
from pyro_fed.ops.whitening import Coordinates, site_scores

#: Share of the way between two other points by which draws of a weighted sample are moved, because coinciding particles
#: would never separate.
DRAW_JITTER = 0.1
#: Number of sets of draws from which one is chosen.
CANDIDATE_SETS = 200
#: Largest ratio of a Gaussian's width to the prior's; a wider Gaussian is not used.
MAX_SD_RATIO = 10.0
#: A whitened score is too steep if it is longer than `MAX_SCORE_RATIO` times √D, the Gaussian's own where most of its
#: mass is. `MAX_APPROACH_ROUNDS`: largest number of rounds in which such points are moved towards the centre.
MAX_SCORE_RATIO, MAX_APPROACH_ROUNDS = 100.0, 10
#: The error if the phase before has found no Gaussian for the start.
NOWHERE = (
    "particles have nowhere to begin: the Gaussian of the phase before, whose coordinates they move in, is no "
    "distribution. Its precision is not positive definite or not a number, as happens if no mode was found. To see "
    "where the search went, call pf.run with FedLaplace on the same federation. A flat prior may be the cause, or a "
    "density that is not a number in parts of its support"
)


def lowest_curvature(points: Tensor, scores: Tensor) -> float:
    """Smallest eigenvalue of H on the span of the points (N, D), from the scores -H z there; -inf if not finite."""
    left, sizes, right = torch.linalg.svd(points, full_matrices=False)
    rank = min(len(points) - 1, points.shape[1])  # the points have mean zero
    curvature = -(left.mT @ scores @ right.mT)[:rank, :rank] / sizes[:rank, None]
    if not bool(curvature.isfinite().all()):
        return -torch.inf
    return float(torch.linalg.eigvalsh(0.5 * (curvature + curvature.mT))[0])


def unit_coordinates(like: Coordinates, draws: Tensor) -> Coordinates:
    """Coordinates in which draws of the prior have SD one: means zero, no correlation, shapes as those of `like`."""
    factor = draws.std(0)
    full = like.factor.dim() > like.mean.dim()
    return Coordinates(torch.zeros_like(like.mean), torch.diag(factor) if full else factor)


def gaussian_points(count: int, dim: int, seed: int) -> Tensor:
    """`count` standard normal points (count, dim): scrambled Sobol with mean zero and covariance one."""
    # Fewer than `dim` + 1 points have covariance one on the space that they span, which SVGD with a linear kernel
    # cannot leave: hence no antithetic pairs, which would span half of it.
    if dim > MOST_SOBOL_DIMS:
        points = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    else:
        uniform = SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)
        points = torch.special.ndtri(uniform + SOBOL_HALF_CELL)
    left, _, right = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    rank = min(count - 1, dim)
    spread: Tensor = count**0.5 * left[:, :rank] @ right[:rank]
    return spread


def mixture_points(modes: Tensor, precisions: Tensor, shares: Tensor, count: int, seed: int) -> Tensor:
    """`count` points under Laplace approximations at modes (C, D), divided by the modes' shares: (count, D)."""
    edges = torch.cat([shares.new_zeros(1), shares.cumsum(0)]).mul(count).round().long()
    edges[-1] = count
    parts = []
    for mode, precision, number in zip(modes, precisions, edges.diff().tolist(), strict=True):
        if number:
            local = Coordinates.of(FullGaussian(precision, precision @ mode))._replace(mean=mode)
            parts.append(local.model(gaussian_points(number, len(mode), seed).to(mode)))
    return torch.cat(parts)


def whitened_resample(
    points: Tensor, weights: Tensor, count: int, generator: torch.Generator
) -> tuple[Coordinates, Tensor]:
    """Coordinates in which weighted points (S, D) have mean zero and covariance one, and `count` draws of them."""
    mean = weights @ points
    offset = points - mean
    scale = (weights @ offset.square()).sqrt()
    x = offset / scale
    factor = scale.unsqueeze(1) * torch.linalg.cholesky(torch.einsum("s,sd,se->de", weights, x, x))
    coordinates = Coordinates(mean, factor)
    white = coordinates.white(points)
    eye = torch.eye(points.shape[1], dtype=points.dtype)
    best, least = white[:count], torch.inf
    for _ in range(CANDIDATE_SETS):  # draws are moved along the line between two others, ter Braak's (2006) jump
        drawn, one, other = (white[systematic(weights, count, generator)] for _ in range(3))
        drawn = drawn + DRAW_JITTER * torch.randn((count, 1), generator=generator, dtype=points.dtype) * (one - other)
        away = drawn.mean(0).square().sum() + 0.5 * (drawn.T @ drawn / count - eye).square().sum()
        if float(away) < least:
            best, least = drawn, float(away)
    return coordinates, coordinates.model(best)


def equal_sites(num_clients: int, coordinates: Coordinates) -> FullGaussian:
    """An equal share of N(0, I) for each client, in whitened coordinates."""
    dim = len(coordinates.mean)
    precision = torch.eye(dim, dtype=coordinates.mean.dtype, device=coordinates.mean.device) / num_clients
    return FullGaussian(precision.expand(num_clients, -1, -1).clone(), precision.new_zeros(num_clients, dim))


class Received(NamedTuple):
    """The message to clients: the points z (C, N, D), and m and A of their coordinates."""

    white: Tensor
    mean: Tensor
    factor: Tensor

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of z."""
        return Coordinates(self.mean, self.factor)


class SurveyState(NamedTuple):
    """The server's state, which becomes the particles' start."""

    white: Tensor  # the points z, (N, D)
    coordinates: Coordinates  # of z
    product: Annotated[Gaussian, ""]  # Π_k t_k there
    scores: Tensor  # the sum of the clients' at the points, (N, D)
    draws: Tensor  # of the prior, that the points are, or become if the check fails; (0, D) for other starts
    shares: Tensor  # of the points at each mode, (M,)
    steep: Tensor  # number of points that are moved for the next round, or all of them after a check, ()
    checking: Tensor  # whether this round checks that m is a maximum, ()
    apart: Tensor  # 1 if the points are draws of the prior without surrogates
    weighted: Tensor  # whether they are weighted points, resampled
    near: Tensor  # whether they are under the Gaussian nearest to a posterior of one mode
    settled: Tensor  # whether weighted points are where the posterior is, so that none is moved


Begin = Literal["gaussian", "modes", "prior", "apart", "checked"]
BEGINNINGS = get_args(Begin)


@dataclass(frozen=True, kw_only=True)
class Survey(Algorithm):
    """Starting points, and all clients' scores there."""

    draws_are: ClassVar[str] = "particles"
    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    #: The phases before by the setting `source`; weighted points are `importance`.
    gaussians: ClassVar[Mapping[str, type[Algorithm]]] = {
        "ep": FedEP,
        "points": PointSites,
        "laplace": FedLaplace,
        "nearest": Nearest,
    }
    importance: ClassVar[type[AdaptiveImportance]] = AdaptiveImportance

    num_particles: int = 100  # N
    begin: Begin = "gaussian"  # "gaussian", "modes", "prior", "apart" or "checked"
    # of the points: "ep", "laplace" (Gaussians), "points" (sites at the point of an averaging), "nearest" or
    # "importance" (of modes)
    source: Literal["auto", "ep", "points", "laplace", "nearest", "importance"] = "auto"
    temperature: float = 1.0  # the likelihood is raised to 1/temperature
    probe: float = 0.1  # distance of the check's points, in SDs of q
    saddle: float = 0.5  # upward curvature, in units of q's, that makes a point no maximum

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_particles")
        check_choice(self, "begin", BEGINNINGS)
        check_positive(self, "temperature", "probe", "saddle")

    def default_rounds(self, num_clients: int) -> int:
        return (2 if self.begin == "checked" else 1) + MAX_APPROACH_ROUNDS

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return {"steep": float(entries_as(SurveyState, after).steep)}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return figures[-1]["steep"] == 0 or len(figures) > MAX_APPROACH_ROUNDS

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The Gaussian, or the search for modes, by the setting `source`."""
        source = chosen_setting(self, "source")
        return self.importance(temperature=self.temperature) if source == "importance" else self.gaussians[source]()

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the points, with the sites in whitened coordinates."""
        start = nearest_of(required_start(start, self))
        _, sites, prior = sites_of_laplace(start)
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
        found = SurveyState(
            white=points,
            coordinates=coordinates,
            product=white.product_over(0),
            scores=torch.zeros_like(points),
            draws=draws,
            shares=shares,
            steep=torch.zeros((), dtype=torch.int64),
            checking=torch.tensor(self.begin == "checked"),
            apart=torch.tensor(float(self.begin == "apart"), dtype=torch.float64),
            weighted=torch.tensor(weighted is not None),
            near=torch.tensor(self.begin == "modes" and weighted is None and is_at_rest(start.shared)),
            settled=torch.tensor(self.begin == "modes" and weighted_points_of(start.shared) is not None),
        )
        # The scores of a large model need much memory, which is allocated only when they are known.
        count = len(points) if fits_in_memory(num_clients * points.numel()) else 0
        unknown = points.new_zeros(num_clients, count, problem.dim, dtype=problem.traits.scores_dtype)
        return as_entries(found), as_state(white) | {"scores": unknown}

    def _weighted_points(
        self, problem: Problem, coordinates: Coordinates, found: State, generator: torch.Generator
    ) -> tuple[Tensor, Tensor] | None:
        """Weighted points for a start in place of the modes' Gaussians; None if these suffice."""
        if self.begin != "modes":
            return None
        better = weighted_points_of(found)
        if better is not None:
            return better
        draws = problem.init(self.num_particles, generator, checked=False).double()
        factor = coordinates.factor
        sd = factor.norm(dim=1) if factor.dim() == 2 else factor
        if bool((sd <= MAX_SD_RATIO * draws.std(0)).all()):
            return None
        if "weighted_points" in found:
            known = weighted_points(found)
            return known.points, flattened(known.weights.log(), MIN_SMOOTHED_DRAWS)
        return draws, torch.full((len(draws),), 1 / len(draws), dtype=torch.float64)

    def _points(self, coordinates: Coordinates, draws: Tensor, found: State, seed: int) -> tuple[Tensor, Tensor]:
        """Whitened starting points (N, D), and the share of each mode."""
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
        return super().download(entries_as(Received, shared)._asdict(), clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute likelihood scores in whitened coordinates, at all points; client by client if they are many."""
        received = entries_as(Received, shared)
        if fits_in_memory(received.white.numel()):
            scores = self._white_scores(problem, received, data)
        else:
            scores = received.white.new_empty(received.white.shape, dtype=problem.traits.scores_dtype)
            for client in range(len(scores)):
                own = slice(client, client + 1)
                scores[own] = self._white_scores(problem, Received(*(part[own] for part in received)), data.of(own))
        return {"scores": scores}, {**local, "scores": scores}, {}

    def _white_scores(self, problem: Problem, received: Received, data: ClientData) -> Tensor:
        coordinates = received.coordinates
        scores = clients_likelihood_scores(problem, coordinates.model(received.white).to(problem.dtype), data)
        return (coordinates.pull(scores.double()) / self.temperature).to(problem.traits.scores_dtype)

    def contributions(self) -> Contributions:
        return SurveyContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return {**shared, "scores": messages["scores"].sum(0)}

    def refine(self, problem: Problem, shared: State) -> State:
        """Compute the points of the next round: after the check, or if some are too steep."""
        survey = entries_as(SurveyState, shared)
        prior = prior_scores(problem, survey.coordinates.model(survey.white).to(problem.dtype)).double()
        scores = survey.scores + survey.coordinates.pull(prior)
        next_points = self._checked(survey, scores) if bool(survey.checking) else self._less_steep(survey, scores)
        return {**shared, **as_entries(next_points)}

    def _checked(self, found: SurveyState, scores: Tensor) -> SurveyState:
        """The state with the starting points after the check, or with draws of the prior if m is no maximum."""
        unchecked = torch.zeros_like(found.checking)
        found = found._replace(steep=torch.full_like(found.steep, len(scores)), checking=unchecked)
        if lowest_curvature(found.white, scores) >= -self.saddle:
            return found._replace(white=found.white / self.probe)
        units = unit_coordinates(found.coordinates, found.draws)
        return found._replace(white=units.white(found.draws), coordinates=units, apart=torch.ones_like(found.apart))

    def _less_steep(self, found: SurveyState, scores: Tensor) -> SurveyState:
        """Steep points moved half-way to the centre; draws of the prior and weighted points stay unchanged."""
        steep = ~(scores.norm(dim=1) <= MAX_SCORE_RATIO * scores.shape[1] ** 0.5)  # NaN counts as steep
        if bool(found.apart) or self.begin == "prior" or bool(found.settled):
            steep = torch.zeros_like(steep)
        return found._replace(white=torch.where(steep[:, None], found.white / 2, found.white), steep=steep.sum())

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        points = entries_as(Received, shared)
        return points.coordinates.model(points.white)[None]


def residuals_at(scores: Tensor, sites: Gaussian, white: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Clients' scores (C, N, D) less their sites' at the particles, in `dtype`, and their sum in double precision."""
    if fits_in_memory(scores.numel()):
        residual = scores - site_scores(sites.precision, sites.eta, white)
        return residual.to(dtype), residual.sum(0)
    kept, total = scores.new_empty(scores.shape, dtype=dtype), torch.zeros_like(white)
    for into, own, precision, eta in zip(kept, scores, sites.precision, sites.eta, strict=True):
        one = own - site_scores(precision, eta, white)
        into.copy_(one)
        total += one
    return kept, total
