"""Laplace's approximation of the tilted density: "laplace".

    θ̂ = arg max log p_k(θ) + log q_-k(θ),    q̂ = N(θ̂, (Λ_lik(θ̂) + Λ_-k)⁻¹)                 Guo et al., Eq. (4)

θ̂ by Newton steps with a line search, as in `fedlaplace`. Where the model is small enough the curvature is the full
Hessian, also for a diagonal q: then q̂ is projected by its mean and variances, as EP does (KL(p ‖ q)); this is exact
for Gaussian clients. Elsewhere it is the diagonal Fisher information of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.infer.ep.tilted.base import Client, Received, Tilted, site_from
from pyro_fed.infer.sites.gaussian_sites import absolute, site_of
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class Laplace(Client):
    """Newton's method on the tilted density.

    Args:
        curvature_steps: Newton steps a round.
        fractions: of a Newton step that the line search tries.
    """

    curvature_steps: int
    fractions: tuple[float, ...]

    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the tilted mode and curvature."""
        batch, cavity = data.full_batch(), received.cavity
        inner = cavity.to_full() if self.exact.structure == "full" else cavity
        point = received.q.mean()
        for _ in range(self.curvature_steps):
            tilted = self._tilted(problem, point, inner, batch)
            metric = absolute(tilted, self.min_curvature)[0]
            point = self._search(
                problem, point, type(metric)(metric.precision, tilted.score(point)).mean(), inner, batch
            )
        tilted = self._tilted(problem, point, inner, batch)
        left = (point - tilted.mean()).square() * tilted.to_diag().precision
        found = site_from(tilted if cavity.dense else tilted.to_diag(), cavity)
        return Tilted(found.site, found.usable, {"newton_step": left.amax(-1).sqrt().nan_to_num(nan=torch.inf)})

    def _tilted(self, problem: Problem, point: Tensor, cavity: Gaussian, batch: Batch) -> Gaussian:
        return site_of(self.exact.of_likelihood(problem, point[None], batch), point).product(cavity)

    def _search(self, problem: Problem, point: Tensor, direction: Tensor, cavity: Gaussian, batch: Batch) -> Tensor:
        """The best fraction of the step for each client, staying where none is better."""
        fractions = point.new_tensor((0.0, *self.fractions))
        line = point.unsqueeze(1) + fractions.unsqueeze(-1) * direction.nan_to_num().unsqueeze(1)
        values = problem.mapped(self._values, (0, BATCHES))(line.to(problem.dtype), batch).double()
        values = (values + cavity.log_factor(line.movedim(1, 0)).movedim(0, 1)).nan_to_num(nan=-torch.inf)
        return torch.take_along_dim(line, values.argmax(1)[:, None, None], 1).squeeze(1)

    def _values(self, problem: Problem, line: Tensor, batch: Batch) -> Tensor:
        return problem.vmap(lambda z: problem.log_lik(z, batch))(line)
