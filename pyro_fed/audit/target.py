"""The log density that a result should be of, with its score, in coordinates that whiten the result's draws.

    z = m + L w,    m the draws' mean, L L' their covariance

so that a result that is right and Gaussian has the target N(0, I) there. With fewer draws than `ENOUGH` a dimension
their covariance is drawn towards its diagonal, by D / (S + D): it need not be that of the posterior, for all that is
done in these coordinates is exact in any; it is a matter of how many steps it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import CHUNK

#: Draws a dimension from which on their covariance is taken as it is.
ENOUGH = 4
#: SDs that are less than this share of the largest are rounding.
SMALLEST = 1e-10


@dataclass
class Target:
    """Log density and score of the posterior, in whitened coordinates.

    Args:
        problem: the posterior of all rows.
        centre: m (D,), float64.
        factor: L (D, D), lower triangular, float64.
        spent: densities of all rows computed so far.
    """

    problem: Problem
    centre: Tensor
    factor: Tensor
    spent: int = 0

    @classmethod
    def of(cls, problem: Problem, draws: Tensor) -> Target:
        """That of a result.

        Args:
            problem: as the run compiled it.
            draws: (S, D), S at least 2.
        """
        level = problem.compiler.level
        compiler = Compiler("trace" if level == "inductor" else level, False, 1, problem.compiler.cache)
        z = draws.double()
        return cls(replace(problem, compiler=compiler, progress=False), z.mean(0), _factor(z))

    def model(self, white: Tensor) -> Tensor:
        """The model's coordinates (S, D) of whitened points (S, D), float64."""
        return self.centre + white @ self.factor.T

    def white(self, z: Tensor) -> Tensor:
        """The whitened coordinates (S, D) of the model's (S, D)."""
        found: Tensor = torch.linalg.solve_triangular(self.factor, (z.double() - self.centre).T, upper=False).T
        return found

    def __call__(self, white: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (S,), -inf where it is no number, and its gradient (S, D), zero there; at whitened (S, D)."""
        z = self.model(white).to(self.problem.dtype)
        size = max(1, min(len(z), CHUNK // max(1, self.problem.evaluations)))
        compiled = self.problem.mapped(_score_and_value, (0,))
        found = [self._piece(compiled, piece, size) for piece in z.split(size)]
        self.spent += len(z)
        score, value = (torch.cat([pair[i] for pair in found]).double() for i in (0, 1))
        usable = value.isfinite() & score.isfinite().all(-1)
        return torch.where(usable, value, -torch.inf), torch.where(usable[:, None], score @ self.factor, 0.0)

    @staticmethod
    def _piece(compiled: Any, piece: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """A piece, made up to the size that was compiled."""
        whole = torch.cat([piece, piece[-1:].expand(size - len(piece), -1)])
        score, value = compiled(whole[None])
        return score[0, : len(piece)], value[0, : len(piece)]


def _score_and_value(problem: Problem, points: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (S, D) and values (S,) of the log density of all rows at points (S, D)."""

    def log_density(z: Tensor) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, problem.all_rows)
        return log_prior + pointwise.sum()

    found: tuple[Tensor, Tensor] = problem.vmap(grad_and_value(log_density))(points)
    return found


def _factor(z: Tensor) -> Tensor:
    """A Cholesky factor of the draws' covariance, as the module's header says."""
    count, dim = z.shape
    sd = z.std(0)
    sd = sd.clamp_min(SMALLEST * float(sd.max()) if float(sd.max()) > 0 else 1.0)
    u = (z - z.mean(0)) / sd
    correlation = u.T @ u / (count - 1)
    share = 0.0 if count >= ENOUGH * dim else dim / (count + dim)
    eye = torch.eye(dim, dtype=z.dtype)
    correlation = (1 - share) * correlation + share * eye
    factor, info = torch.linalg.cholesky_ex(correlation)
    if int(info):
        factor = torch.linalg.cholesky((1 - SMALLEST**0.5) * correlation + SMALLEST**0.5 * eye)
    return sd[:, None] * factor
