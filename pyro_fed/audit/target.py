"""The log density that a result should be of, with its score, in coordinates that whiten the result's draws.

    z = m + L w,    m the draws' mean, L L' their covariance

In these coordinates the target of a correct Gaussian result is N(0, I). With fewer than `DRAWS_A_DIMENSION` draws for
each dimension the covariance is shrunk towards its diagonal, by D / (S + D); with more than `LARGEST_FULL` parameters L
is diagonal. L need not fit the posterior: the methods that use these coordinates are exact in any, and only their speed
differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp

from pyro_fed.density.derivatives.few_rows import Quadratic
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import CHUNK
from pyro_fed.ops.importance import LARGEST

#: With this many draws for each dimension their covariance is not shrunk.
DRAWS_A_DIMENSION = 4
#: The most parameters that are whitened together; more are whitened one by one.
LARGEST_FULL = 500
#: Points are computed in groups of this size, the last one filled up, since each further size would have to be traced.
#: Few points (those of climbs) and very many have group sizes of their own.
BATCH, SMALL_BATCH, LARGE_BATCH = 128, 32, 2048
#: An SD smaller than this share of the largest is rounding.
SMALLEST_SD_SHARE = 1e-10
#: Half the distance over which scores are compared for a curvature: in the result's SDs, or as a multiple of a
#: parameter's size or of one.
SCORE_STEP = 1e-3


@dataclass(frozen=True)
class FewRows:
    """Rows that stand for all, with the correction level + a'w - w'E w / 2 of their log density, see `few_rows`.

    Args:
        rows: the rows' tensors, in the order of `Problem.all_rows`, each with b rows.
        count: b.
        correction: level (), a (D,) and E (D, D), float64.
        seen_as: maps the whitened coordinates of a target to the coordinates w of the correction; None if they are
            the same.
    """

    rows: tuple[Tensor, ...]
    count: int
    correction: Quadratic
    seen_as: Callable[[Tensor], Tensor] | None = None

    def value_and_gradient(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """The correction (S,) at a target's whitened points (S, D), and its gradient there (S, D)."""
        if self.seen_as is None:
            return self.correction.value(white), self.correction.gradient(white)
        seen, pull = vjp(self.seen_as, white)[:2]
        value, gradient = replace(self, seen_as=None).value_and_gradient(seen)
        return value, pull(gradient)[0]


@dataclass
class Target:
    """Log density and score of the posterior, in whitened coordinates.

    Args:
        problem: the posterior of all rows.
        centre: m (D,), float64.
        factor: L (D, D), lower triangular, or its diagonal (D,) if L is diagonal; float64.
        temperature: T of the likelihood, which is raised to the power 1 / T, as in generalised Bayes.
        few: rows that stand for all; None: all rows are used.
    """

    problem: Problem
    centre: Tensor
    factor: Tensor
    temperature: float = 1.0
    few: FewRows | None = None

    @classmethod
    def of(cls, problem: Problem, draws: Tensor, temperature: float = 1.0) -> Target:
        """The target of a result, in coordinates that whiten its draws (S, D), S >= 2.

        The likelihood is raised to the power 1 / `temperature`: 1 for the posterior.
        """
        z = draws.double()
        return cls(for_checks(problem), z.mean(0), whitening_factor(z), temperature)

    @classmethod
    def around(cls, problem: Problem, point: Tensor, temperature: float = 1.0) -> Target:
        """The target around a point (D,), float64, with each parameter in units of the curvature there, (-∂²f)^(-1/2).

        The likelihood is raised to the power 1 / `temperature`: 1 for the posterior.
        """
        target, dim = cls(for_checks(problem), point, torch.ones_like(point), temperature), len(point)
        step = SCORE_STEP * point.abs().clamp_min(1.0)
        _, score = target(torch.cat([step.diag(), -step.diag()]))
        curvature = (score[dim:] - score[:dim]).diagonal() / (2 * step)
        return replace(target, factor=torch.where(curvature > 0, curvature, 1.0).rsqrt())

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
        found: Tensor = torch.linalg.solve_triangular(self.factor, away.T, upper=False).T
        return found

    @property
    def share(self) -> float:
        """The share of all rows from which a density is computed."""
        return self.few.count / self.problem.num_rows if self.few is not None else 1.0

    @property
    def evaluations(self) -> int:
        """The number of rows' densities that one log density takes."""
        return math.ceil(self.problem.evaluations * self.share)

    def __call__(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (S,) and its gradient (S, D) at whitened points (S, D); -inf and zero if one is not finite."""
        score, value = self._at(white, "score_and_value")
        score, value = score.double(), value.double()
        pulled = score * self.factor if self.factor.dim() == 1 else score @ self.factor
        if self.few is not None:
            missed, slope = self.few.value_and_gradient(white)
            value, pulled = value + missed, pulled + slope
        usable = value.isfinite() & (value < LARGEST) & score.isfinite().all(-1)
        return torch.where(usable, value, -torch.inf), torch.where(usable[:, None], pulled, 0.0)

    def values(self, white: Tensor) -> Tensor:
        """The log density (S,) alone at whitened points (S, D); -inf if it is not finite."""
        (value,) = self._at(white, "value")
        value = value.double()
        if self.few is not None:
            value = value + self.few.value_and_gradient(white)[0]
        return torch.where(value.isfinite() & (value < LARGEST), value, -torch.inf)

    def terms(self, z: Tensor) -> Tensor:
        """Log densities of the prior and of each of the N rows, (S, 1 + N) float64, at the model's points z (S, D)."""
        (found,) = _at(self.problem, z.to(self.problem.dtype), TemperedDensity(self.temperature).terms)
        return found.double()

    def _at(self, white: Tensor, what: str) -> tuple[Tensor, ...]:
        """The result of a method of `TemperedDensity`, by name, at whitened points (S, D) with the target's rows."""
        rows = self.few.rows if self.few is not None else None
        method = getattr(TemperedDensity(self.temperature * self.share), what)
        return _at(self.problem, self.model(white).to(self.problem.dtype), method, rows)


def scores_at(problem: Problem, z: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores (S, D) and log densities (S,) at the model's points z (S, D), as the run computes them, in its dtype.

    `for_checks` has compiled the problem. The likelihood is raised to the power 1 / `temperature`.
    """
    score, value = _at(problem, z, TemperedDensity(temperature).score_and_value)
    return score, value


def _at(
    problem: Problem, z: Tensor, function: Callable[..., tuple[Tensor, ...]], rows: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, ...]:
    """The result of a function of points (S, D) and of rows (all by default), computed for some points at a time."""
    most = SMALL_BATCH if len(z) <= SMALL_BATCH else BATCH if len(z) < LARGE_BATCH else LARGE_BATCH
    share = 1.0 if rows is None else len(rows[0]) / problem.num_rows
    size = max(1, min(most, int(CHUNK / max(1.0, share * problem.evaluations))))
    # The rows are inputs: the compiled step serves other data of the same shapes too (`Federation.with_args`).
    compiled = problem.mapped(function, (0, None))
    given = problem.all_rows if rows is None else rows
    pieces = zip(*(_piece(problem, compiled, piece, given, size) for piece in z.split(size)), strict=True)
    return tuple(torch.cat(parts) for parts in pieces)


def _piece(problem: Problem, compiled: Any, piece: Tensor, rows: tuple[Any, ...], size: int) -> list[Tensor]:
    """The compiled function at a piece of the points, which is filled up to `size` if functions are traced."""
    missing = size - len(piece) if problem.compiler.level == "trace" else 0
    found = compiled(torch.cat([piece, piece[-1:].expand(missing, -1)])[None], rows)
    return [part[0, : len(piece)] for part in found]


@dataclass(frozen=True)
class TemperedDensity:
    """The log density of some rows, with the likelihood's part divided by a temperature (1 for the posterior)."""

    temperature: float = 1.0

    def score_and_value(self, problem: Problem, points: Tensor, rows: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Scores (S, D) and values (S,) at unconstrained points (S, D)."""
        density = partial(self._log_density, problem, rows)
        found: tuple[Tensor, Tensor] = problem.vmap(grad_and_value(density))(points)
        return found

    def value(self, problem: Problem, points: Tensor, rows: tuple[Any, ...]) -> tuple[Tensor]:
        """Values (S,) at unconstrained points (S, D)."""
        return (problem.vmap(partial(self._log_density, problem, rows))(points),)

    def terms(self, problem: Problem, points: Tensor, rows: tuple[Any, ...]) -> tuple[Tensor]:
        """The prior's term and each row's, (S, 1 + N), at unconstrained points (S, D)."""

        def of_one(z: Tensor) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, rows)
            return torch.cat([log_prior[None], pointwise / self.temperature])

        return (problem.vmap(of_one)(points),)

    def _log_density(self, problem: Problem, rows: tuple[Any, ...], z: Tensor) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, rows)
        return log_prior + pointwise.sum() / self.temperature


def for_checks(problem: Problem) -> Problem:
    """The problem with the compiler that checks use, and without progress bars."""
    return replace(problem, compiler=problem.compiler.for_checks(), progress=False)


def whitening_factor(z: Tensor) -> Tensor:
    """L of draws (S, D), see the module's header: a Cholesky factor (D, D), or SDs (D,) of many parameters."""
    count, dim = z.shape
    sd = z.std(0)
    sd = sd.clamp_min(SMALLEST_SD_SHARE * float(sd.max()) if float(sd.max()) > 0 else 1.0)
    if dim > LARGEST_FULL:
        return sd
    u = (z - z.mean(0)) / sd
    correlation = u.T @ u / (count - 1)
    share = 0.0 if count >= DRAWS_A_DIMENSION * dim else dim / (count + dim)
    eye = torch.eye(dim, dtype=z.dtype)
    correlation = (1 - share) * correlation + share * eye
    factor, info = torch.linalg.cholesky_ex(correlation)
    if int(info):
        factor = torch.linalg.cholesky((1 - SMALLEST_SD_SHARE**0.5) * correlation + SMALLEST_SD_SHARE**0.5 * eye)
    scaled: Tensor = sd[:, None] * factor
    return scaled
