"""The log density that a result should be of, with its score, in coordinates that whiten the result's draws.

    z = m + L w,    m the draws' mean, L L' their covariance

so that a result that is right and Gaussian has the target N(0, I) there. With fewer draws than `ENOUGH` a dimension
their covariance is drawn towards its diagonal, by D / (S + D), and of more than `LARGEST_FULL` parameters L is
diagonal: it need not be that of the posterior, for all that is done in these coordinates is exact in any. How many
steps it takes differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import CHUNK

#: Draws a dimension from which on their covariance is taken as it is.
ENOUGH = 4
#: More parameters than this are whitened one by one.
LARGEST_FULL = 500
#: Points that are computed together, at most, and made up to: each further size would have to be traced. Few points,
#: as climbs are, and very many have sizes of their own.
BATCH, SMALL_BATCH, LARGE_BATCH = 128, 32, 2048
#: SDs that are less than this share of the largest are rounding.
SMALLEST = 1e-10
#: Half the distance over which scores are compared for a parameter's curvature, of its size or of one.
APART = 1e-3


@dataclass
class Target:
    """Log density and score of the posterior, in whitened coordinates.

    Args:
        problem: the posterior of all rows.
        centre: m (D,), float64.
        factor: L (D, D), lower triangular, or its diagonal (D,) where that is all; float64.
        temperature: the likelihood is raised to its inverse, as in generalised Bayes.
        spent: densities of all rows computed so far.
    """

    problem: Problem
    centre: Tensor
    factor: Tensor
    temperature: float = 1.0
    spent: int = 0

    @classmethod
    def of(cls, problem: Problem, draws: Tensor, temperature: float = 1.0) -> Target:
        """That of a result.

        Args:
            problem: as the run compiled it.
            draws: (S, D), S at least 2.
            temperature: of the likelihood.
        """
        z = draws.double()
        return cls(for_checks(problem), z.mean(0), _factor(z), temperature)

    @classmethod
    def around(cls, problem: Problem, point: Tensor, temperature: float = 1.0) -> Target:
        """That of a result without a spread, in units of the curvature at a point, one parameter at a time.

        Args:
            problem: as the run compiled it.
            point: (D,), float64.
            temperature: of the likelihood.
        """
        target, dim = cls(for_checks(problem), point, torch.ones_like(point), temperature), len(point)
        step = APART * point.abs().clamp_min(1.0)
        _, score = target(torch.cat([step.diag(), -step.diag()]))
        curvature = (score[dim:] - score[:dim]).diagonal() / (2 * step)
        return replace(target, factor=torch.where(curvature > 0, curvature, 1.0).rsqrt())

    @property
    def scale(self) -> Tensor:
        """The SDs (D,) of L w for w ~ N(0, I)."""
        return self.factor if self.factor.dim() == 1 else self.factor.norm(dim=1)

    def along(self, white: Tensor) -> Tensor:
        """L w in these SDs, (..., S, D), of w (..., S, D)."""
        return white if self.factor.dim() == 1 else white @ (self.factor / self.scale[:, None]).T

    def model(self, white: Tensor) -> Tensor:
        """The model's coordinates (S, D) of whitened points (S, D), float64."""
        return self.centre + self.scale * self.along(white)

    def white(self, z: Tensor) -> Tensor:
        """The whitened coordinates (S, D) of the model's (S, D)."""
        away = z.double() - self.centre
        if self.factor.dim() == 1:
            return away / self.factor
        found: Tensor = torch.linalg.solve_triangular(self.factor, away.T, upper=False).T
        return found

    def __call__(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (S,), -inf where it is no number, and its gradient (S, D), zero there; at whitened (S, D)."""
        score, value = scores_at(self.problem, self.model(white).to(self.problem.dtype), self.temperature)
        self.spent += len(white)
        score, value = score.double(), value.double()
        pulled = score * self.factor if self.factor.dim() == 1 else score @ self.factor
        usable = value.isfinite() & score.isfinite().all(-1)
        return torch.where(usable, value, -torch.inf), torch.where(usable[:, None], pulled, 0.0)

    def values(self, white: Tensor) -> Tensor:
        """The log density (S,) alone, -inf where it is no number; at whitened (S, D)."""
        (value,) = _at(self.problem, self.model(white).to(self.problem.dtype), Tempered(self.temperature).value)
        self.spent += len(white)
        return torch.where(value.isfinite(), value.double(), -torch.inf)


def scores_at(problem: Problem, z: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores (S, D) and log densities (S,) as the run computes them, in its dtype.

    Args:
        problem: as `for_checks` compiles it.
        z: (S, D), the model's coordinates.
        temperature: of the likelihood.
    """
    score, value = _at(problem, z, Tempered(temperature).score_and_value)
    return score, value


def _at(problem: Problem, z: Tensor, function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What a function makes of points (S, D) and all rows, some points at a time."""
    most = SMALL_BATCH if len(z) <= SMALL_BATCH else BATCH if len(z) < LARGE_BATCH else LARGE_BATCH
    size = max(1, min(most, CHUNK // max(1, problem.evaluations)))
    # The rows are inputs: the compiled step serves other data of the same shapes too (`Federation.with_args`).
    compiled = problem.mapped(function, (0, None))
    pieces = zip(*(_piece(problem, compiled, piece, size) for piece in z.split(size)), strict=True)
    return tuple(torch.cat(parts) for parts in pieces)


def _piece(problem: Problem, compiled: Any, piece: Tensor, size: int) -> list[Tensor]:
    """A piece, made up to the size that is compiled where anything is."""
    missing = size - len(piece) if problem.compiler.level == "trace" else 0
    found = compiled(torch.cat([piece, piece[-1:].expand(missing, -1)])[None], problem.all_rows)
    return [part[0, : len(piece)] for part in found]


@dataclass(frozen=True)
class Tempered:
    """The log density of all rows, the likelihood's part divided by a temperature.

    Args:
        temperature: 1 for the posterior.
    """

    temperature: float = 1.0

    def score_and_value(self, problem: Problem, points: Tensor, rows: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Scores (S, D) and values (S,) at points (S, D).

        Args:
            problem: the model's densities.
            points: unconstrained.
            rows: all rows, as the problem has them.
        """
        density = partial(self._log_density, problem, rows)
        found: tuple[Tensor, Tensor] = problem.vmap(grad_and_value(density))(points)
        return found

    def value(self, problem: Problem, points: Tensor, rows: tuple[Any, ...]) -> tuple[Tensor]:
        """Values (S,) alone.

        Args:
            problem: the model's densities.
            points: (S, D), unconstrained.
            rows: all rows, as the problem has them.
        """
        return (problem.vmap(partial(self._log_density, problem, rows))(points),)

    def _log_density(self, problem: Problem, rows: tuple[Any, ...], z: Tensor) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, rows)
        return log_prior + pointwise.sum() / self.temperature


def for_checks(problem: Problem) -> Problem:
    """The problem as checks compile it."""
    return replace(problem, compiler=problem.compiler.for_checks(), progress=False)


def _factor(z: Tensor) -> Tensor:
    """A Cholesky factor of the draws' covariance, as the module's header says, or their SDs."""
    count, dim = z.shape
    sd = z.std(0)
    sd = sd.clamp_min(SMALLEST * float(sd.max()) if float(sd.max()) > 0 else 1.0)
    if dim > LARGEST_FULL:
        return sd
    u = (z - z.mean(0)) / sd
    correlation = u.T @ u / (count - 1)
    share = 0.0 if count >= ENOUGH * dim else dim / (count + dim)
    eye = torch.eye(dim, dtype=z.dtype)
    correlation = (1 - share) * correlation + share * eye
    factor, info = torch.linalg.cholesky_ex(correlation)
    if int(info):
        factor = torch.linalg.cholesky((1 - SMALLEST**0.5) * correlation + SMALLEST**0.5 * eye)
    scaled: Tensor = sd[:, None] * factor
    return scaled
