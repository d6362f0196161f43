"""The log density and score of the posterior that a result approximates, in coordinates that whiten its draws.

    z = m + L w,    m the draws' mean, L L' their covariance

In these coordinates the target of a correct Gaussian result is N(0, I). With fewer than `DRAWS_A_DIMENSION` draws per
dimension the covariance is shrunk towards its diagonal, by D / (S + D). With more than `LARGE_DIM` parameters L is
diagonal. L need not fit the posterior: it changes only the speed of the methods that use these coordinates.

**Many rows** are replaced by a few of them, with a quadratic correction c for the others:

    log p(w) = log p_0(w) + n/b Σ_{i ∈ B} log p_i(w) + c(w),      c(w) ≈ level + a'w - w'E w / 2

B has b of the n rows. With many rows c is nearly quadratic: its third derivatives are of order n^(-1/2). It is the
control variate of `density.derivatives.few_rows`, which names the source, at the draws' mean. If rows' scores jump, a
and E are means over points at the draws' distance from their mean. The approximation is compared with the density of
all rows at some draws, moved `OUTWARD_FACTOR` times as far out. The allowed difference is `NEGLIGIBLE` nats times
`OUTWARD_FACTOR`³, as terms of third order grow. If it is exceeded, four times as many rows are taken, and all rows if a
quarter of them does not agree.

The correction holds around the draws. A search far from them (`modes`) uses the few rows without it, and continues from
its results with all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp

from pyro_fed.conventions.limits import NEGLIGIBLE, SAME_SHARE, SUM_ROUNDING_UNITS
from pyro_fed.density.checks.points import NUM_DRAWS
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.few_rows import (
    MORE_ROWS,
    Quadratic,
    likelihoods_at,
    pick_rows,
    row_numbers,
)
from pyro_fed.density.latents.ascent_starts import ascent_starts, first_client, one_client
from pyro_fed.density.latents.quadrature import NearbyModes
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.traits import LARGE_DIM
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.importance import MAX_LOG_DENSITY
from pyro_fed.ops.memory import count_of_densities
from pyro_fed.policy.audit import CHAINS, FEWEST_CHAINS, MANY_CHAINS, SCORE_COST, takes_some_rows

#: With this many draws per dimension their covariance is not shrunk.
DRAWS_A_DIMENSION = 4
#: Points are computed in batches of these sizes, the last batch filled up, since each further size would be traced. The
#: sizes are those of climbs, few chains, many chains and weighted points.
BATCHES = 16, FEWEST_CHAINS, CHAINS, MANY_CHAINS
#: An SD smaller than this share of the largest is rounding.
MIN_SD_SHARE = 1e-10
#: Half the distance over which scores are compared for a curvature: in the result's SDs, or as a multiple of a
#: parameter's size or of one. The error of central differences is least near the cube root of the rounding error.
SCORE_STEP = torch.finfo(torch.float32).eps ** (1 / 3)
#: Draws at which densities are compared are moved this many times as far from the mean.
OUTWARD_FACTOR = 1.5


@dataclass(frozen=True)
class FewRows:
    """A few rows in place of all, with the correction level + a'w - w'E w / 2 of their log density."""

    rows: tuple[Tensor, ...]  # in the order of `Problem.all_rows`
    correction: Quadratic
    # maps a target's whitened coordinates to the correction's w; None if they are the same
    correction_coordinates: Callable[[Tensor], Tensor] | None = None

    @property
    def count(self) -> int:
        """Their number."""
        return len(self.rows[0])

    def value_and_gradient(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """The correction (S,) at a target's whitened points (S, D), and its gradient there (S, D)."""
        if self.correction_coordinates is None:
            return self.correction.value(white), self.correction.gradient(white)
        seen, pull = vjp(self.correction_coordinates, white)[:2]
        return self.correction.value(seen), pull(self.correction.gradient(seen))[0]


class NearDraws(NamedTuple):
    """The modes of the rows' own latents near the draws, and the distance from their mean up to which they hold."""

    modes: NearbyModes
    reach: float


@dataclass
class Target:
    """Log density and score of the posterior, in whitened coordinates."""

    problem: Problem
    centre: Tensor  # m (D,), float64
    factor: Tensor  # L (D, D), lower triangular, or its diagonal (D,), float64
    temperature: float = 1.0  # T: the likelihood is raised to the power 1 / T, as in generalised Bayes
    few: FewRows | None = None  # rows in place of all
    near: NearDraws | None = None

    @classmethod
    def of(cls, problem: Problem, draws: Tensor, temperature: float = 1.0) -> Target:
        """The target in coordinates that whiten draws (S, D), S >= 2."""
        z = draws.double()
        return cls(for_checks(problem), z.mean(0), whitening_factor(z), temperature)

    @classmethod
    def around(cls, problem: Problem, point: Tensor, temperature: float = 1.0) -> Target:
        """The target around a point (D,), with each parameter in units of the curvature there, (-∂²f)^(-1/2)."""
        target, dim = cls(for_checks(problem), point, torch.ones_like(point), temperature), len(point)
        step = SCORE_STEP * point.abs().clamp_min(1.0)
        _, score = target(torch.cat([step.diag(), -step.diag()]))
        curvature = (score[dim:] - score[:dim]).diagonal() / (2 * step)
        return replace(target, factor=torch.where(curvature > 0, curvature, 1.0).rsqrt())

    def with_near_modes(self, white: Tensor) -> Target:
        """This target with the modes of the rows' own latents near whitened points (S, D); itself without any."""
        rows = one_client(self._rows, self.centre.to(self.problem.dtype))
        known = ascent_starts(self.problem, self.model(white).unsqueeze(0), rows)
        if known is None or not bool(known.arrive.all()):
            return self
        return replace(self, near=NearDraws(first_client(known.batch.near[0]), float(white.norm(dim=1).max())))

    @property
    def _rows(self) -> tuple[Any, ...]:
        """The rows that the density is computed from."""
        return self.problem.all_rows if self.few is None else self.few.rows

    @property
    def scale(self) -> Tensor:
        """The SDs (D,) of L w for w ~ N(0, I)."""
        return self.factor if self.factor.dim() == 1 else self.factor.norm(dim=1)

    def along(self, white: Tensor) -> Tensor:
        """L w in units of `scale`, (..., S, D), for w (..., S, D)."""
        return white if self.factor.dim() == 1 else white @ (self.factor / self.scale[:, None]).T

    def model(self, white: Tensor) -> Tensor:
        """The model's coordinates (S, D) of whitened points (S, D), float64."""
        return self.centre + self.scale * self.along(white)

    def white(self, z: Tensor) -> Tensor:
        """The whitened coordinates (S, D) of points z (S, D) in the model's coordinates."""
        away = z.double() - self.centre
        if self.factor.dim() == 1:
            return away / self.factor
        white: Tensor = torch.linalg.solve_triangular(self.factor, away.T, upper=False).T
        return white

    def pulled(self, score: Tensor) -> Tensor:
        """L' s in the whitened coordinates (..., D) of gradients s (..., D) in the model's coordinates."""
        return score * self.factor if self.factor.dim() == 1 else score @ self.factor

    @property
    def share(self) -> float:
        """The share of all rows from which a density is computed."""
        return self.few.count / self.problem.num_rows if self.few is not None else 1.0

    @property
    def evaluations(self) -> int:
        """Number of densities of rows for one log density near the draws."""
        return math.ceil(density_cost(self.problem, None if self.near is None else self.near.modes) * self.share)

    @property
    def far_evaluations(self) -> int:
        """Number of densities of rows for one log density far from the draws."""
        return math.ceil(density_cost(self.problem) * self.share)

    def __call__(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (S,) and its gradient (S, D) at whitened points (S, D); -inf and zero where not finite."""
        score, value = self._at(white, "score_and_value")
        value, pulled = value.double(), self.pulled(score.double())
        if self.few is not None:
            missed, slope = self.few.value_and_gradient(white)
            value, pulled = value + missed, pulled + slope
        usable = value.isfinite() & (value < MAX_LOG_DENSITY) & pulled.isfinite().all(-1)
        return torch.where(usable, value, -torch.inf), torch.where(usable[:, None], pulled, 0.0)

    def values(self, white: Tensor) -> Tensor:
        """The log density (S,) alone at whitened points (S, D); -inf where not finite."""
        (value,) = self._at(white, "value")
        value = value.double()
        if self.few is not None:
            value = value + self.few.value_and_gradient(white)[0]
        return torch.where(value.isfinite() & (value < MAX_LOG_DENSITY), value, -torch.inf)

    def terms(self, z: Tensor) -> Tensor:
        """Log densities of the prior and of each of the N rows, (S, 1 + N) float64, at the model's points z (S, D)."""
        problem, method = self.problem, TemperedDensity(self.temperature).terms
        (found,) = _at(problem, z.to(problem.dtype), method, (problem.all_rows, ()), problem.evaluations)
        return found.double()

    def _at(self, white: Tensor, what: str) -> tuple[Tensor, ...]:
        """The result of a method of `TemperedDensity`, by name, at whitened points (S, D) with the target's rows."""
        method = getattr(TemperedDensity(self.temperature * self.share), what)
        z, rows = self.model(white).to(self.problem.dtype), self._rows
        evaluations = math.ceil(self.problem.evaluations * self.share)
        if self.near is None:
            return _at(self.problem, z, method, (rows, ()), evaluations)
        inside = white.norm(dim=1) <= self.near.reach
        at = [which.nonzero()[:, 0] for which in (inside, ~inside)]
        known: tuple[tuple[NearbyModes, ...], ...] = (self.near.modes,), ()
        found = [
            _at(self.problem, z[some], method, (rows, near), evaluations)
            for some, near in zip(at, known, strict=True)
            if len(some)
        ]
        order = torch.cat(at).argsort()
        return tuple(torch.cat(parts)[order] for parts in zip(*found, strict=True))


def density_cost(problem: Problem, near: NearbyModes | None = None) -> int:
    """Number of densities of rows for one log density, the searches for modes of rows' own latents included."""
    nodes = len(near.nodes[1]) if near is not None and near.nodes else problem.num_nodes
    steps = problem.quadrature.mode_steps or 0 if near is None else len(near.steps)
    return problem.widest * (nodes + SCORE_COST * steps)


def scores_at(problem: Problem, z: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores (S, D) and log densities (S,) at the model's points z (S, D), in the dtype of the run."""
    method = TemperedDensity(temperature).score_and_value
    score, value = _at(problem, z, method, (problem.all_rows, ()), problem.evaluations)
    return score, value


def _at(
    problem: Problem, z: Tensor, function: Callable[..., tuple[Tensor, ...]], given: Any, evaluations: int
) -> tuple[Tensor, ...]:
    """A function of points (S, D) and of `given`, computed for some points at a time.

    Rows are inputs, so that the compiled step also serves other data of the same shapes (`Federation.with_args`).
    """
    compiled = problem.mapped(function, (0, None))
    # The number of points computed together is a power of two, since each size is traced.
    room = count_of_densities(evaluations)
    wanted = max((size for size in BATCHES if size <= len(z)), default=BATCHES[0])
    size = min(1 << (room.bit_length() - 1), wanted)
    pieces = zip(*(_piece(problem, compiled, piece, given, size) for piece in z.split(size)), strict=True)
    return tuple(torch.cat(parts) for parts in pieces)


def _piece(problem: Problem, compiled: Any, piece: Tensor, given: Any, size: int) -> list[Tensor]:
    """The compiled function at a piece of the points, which is filled up to `size` if functions are traced."""
    missing = size - len(piece) if problem.compiler.level == "trace" else 0
    values = compiled(torch.cat([piece, piece[-1:].expand(missing, -1)])[None], given)
    return [part[0, : len(piece)] for part in values]


#: Rows, and the modes of their own latents: a tuple of one element, or of none.
Given = tuple[tuple[Any, ...], tuple[NearbyModes, ...]]


@dataclass(frozen=True)
class TemperedDensity:
    """The log density of some rows, with the log-likelihood divided by a temperature (1 for the posterior).

    Rows' own latents get as many quadrature nodes as values and scores need, not the more that curvatures need.
    """

    temperature: float = 1.0

    def score_and_value(self, problem: Problem, points: Tensor, given: Given) -> tuple[Tensor, Tensor]:
        """Scores (S, D) and values (S,) at unconstrained points (S, D)."""
        density = partial(self._log_density, problem, given)
        scores_and_values: tuple[Tensor, Tensor] = problem.vmap(grad_and_value(density))(points)
        return scores_and_values

    def value(self, problem: Problem, points: Tensor, given: Given) -> tuple[Tensor]:
        """Values (S,) at unconstrained points (S, D)."""
        return (problem.vmap(partial(self._log_density, problem, given))(points),)

    def terms(self, problem: Problem, points: Tensor, given: Given) -> tuple[Tensor]:
        """The prior's term and each row's, (S, 1 + N), at unconstrained points (S, D)."""

        def of_one(z: Tensor) -> Tensor:
            log_prior, pointwise = self._log_parts(problem, given, z)
            return torch.cat([log_prior[None], pointwise / self.temperature])

        return (problem.vmap(of_one)(points),)

    def _log_density(self, problem: Problem, given: Given, z: Tensor) -> Tensor:
        log_prior, pointwise = self._log_parts(problem, given, z)
        return log_prior + pointwise.sum() / self.temperature

    @staticmethod
    def _log_parts(problem: Problem, given: Given, z: Tensor) -> tuple[Tensor, Tensor]:
        """`Problem.log_parts` of the given rows, with the given modes of their own latents."""
        return replace(problem, quadrature=problem.quadrature.of_scores).log_parts(z, given[0], *given[1])


def for_checks(problem: Problem) -> Problem:
    """The problem with the compiler that checks use, and without progress bars."""
    return replace(problem, compiler=problem.compiler.for_checks(), progress=False)


def whitening_factor(z: Tensor) -> Tensor:
    """The factor L of draws (S, D): a Cholesky factor (D, D), or SDs (D,) of many parameters."""
    count, dim = z.shape
    sd = z.std(0)
    sd = sd.clamp_min(MIN_SD_SHARE * float(sd.max()) if float(sd.max()) > 0 else 1.0)
    if dim > LARGE_DIM:
        return sd
    u = (z - z.mean(0)) / sd
    correlation = u.T @ u / (count - 1)
    share = 0.0 if count >= DRAWS_A_DIMENSION * dim else dim / (count + dim)
    eye = torch.eye(dim, dtype=z.dtype)
    correlation = (1 - share) * correlation + share * eye
    factor, info = torch.linalg.cholesky_ex(correlation)
    if int(info):
        factor = torch.linalg.cholesky((1 - SAME_SHARE) * correlation + SAME_SHARE * eye)
    scaled: Tensor = sd[:, None] * factor
    return scaled


def on_rows_alone(target: Target) -> Target:
    """The posterior by few rows, without the correction; `target` itself unless it has many rows."""
    problem = target.problem
    counts = _row_counts(problem)
    if not counts:
        return target
    zero = target.centre.new_zeros(())
    nothing = Quadratic(zero, zero.expand(problem.dim), zero.expand(problem.dim, problem.dim))
    return _by_rows(target, _picked(target, counts[0]), nothing)


def near_draws(target: Target, draws: Tensor) -> Target:
    """The target with the modes of the rows' own latents near draws (S, D)."""
    return target.with_near_modes(OUTWARD_FACTOR * target.white(draws))


def on_few_rows(target: Target, white: Tensor) -> Target:
    """The posterior around whitened draws (S, D) by few rows, corrected; `target` itself if these do not agree."""
    problem, counts = target.problem, _row_counts(target.problem)
    if not counts or not problem.traits.few_parameters:
        return target
    points = OUTWARD_FACTOR * white[evenly(len(white), NUM_DRAWS)]
    value, whole = target.values(points), _parabola(target, _all_rows(target))
    if not bool(value.isfinite().all()):
        return target
    rounding = SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * float(value.abs().max())
    allowed = NEGLIGIBLE * OUTWARD_FACTOR**3 + rounding
    for count in counts:
        rows = _picked(target, count)
        some, share = _parabola(target, rows), target.temperature * count / problem.num_rows
        missed = Quadratic(*(a / target.temperature - b / share for a, b in zip(whole, some, strict=True)))
        few_rows_target = _by_rows(target, rows, missed).with_near_modes(points)
        if bool(((few_rows_target.values(points) - value).abs() <= allowed).all()):
            return few_rows_target
    return target


def _row_counts(problem: Problem) -> list[int]:
    """Numbers of rows to try in place of all; none if the rows are few, no tensors, or looped over."""
    return [*row_numbers(problem.dim, problem.num_rows, MORE_ROWS)] if takes_some_rows(problem.traits) else []


def _by_rows(target: Target, rows: ClientData, missed: Quadratic) -> Target:
    """The posterior by some rows, given as one client's, and the correction `missed` for the others."""
    chosen = rows.row_index[0].to(rows.rows[0].device)
    few = FewRows(tuple(leaf[chosen] for leaf in rows.rows), missed)
    return replace(target, few=few, near=None)


def _all_rows(target: Target) -> ClientData:
    """All rows as those of one client."""
    count = torch.tensor([target.problem.num_rows])
    return ClientData(target.problem.all_rows, torch.arange(int(count)).unsqueeze(0), count)


def _picked(target: Target, count: int) -> ClientData:
    """`count` of all rows, as those of one client."""
    return pick_rows(target.problem, _all_rows(target), count)[0]


def _parabola(target: Target, rows: ClientData) -> Quadratic:
    """The rows' log-likelihood around the draws in whitened coordinates, to second order."""
    problem, dim = target.problem, target.problem.dim
    if not problem.traits.non_smooth_rows:
        value, score, curvature = (part[0] for part in likelihoods_at(problem, target.centre.unsqueeze(0), rows))
        return Quadratic(value, target.pulled(score), target.pulled(target.pulled(curvature).mT))
    axes = dim**0.5 * torch.eye(dim, dtype=target.centre.dtype)
    points = target.model(torch.cat([axes, -axes])).unsqueeze(1)
    means = Derivatives("full", "hessian").of_likelihood(problem, points, rows.full_batch())
    value, score, curvature = (part[0] for part in means)
    bend = target.pulled(target.pulled(curvature).mT)
    return Quadratic(value + bend.trace() / 2, target.pulled(score), bend)
