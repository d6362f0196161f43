"""Natural-gradient variational inference, Algorithm 5: "ngvi".

    s_t = β s_{t-1} + (1 - β) 1/N_k E_{θ ~ N(μ, Σ_{t-1})}[F(θ)],    Σ_t = (N_k s_t + Λ_-k)⁻¹

μ is the mean of a chain (see `clients.chain`), as for the other clients of the paper; F the Fisher information.
Deviations: s_0 is F(μ) / N_k, which the paper leaves open; the expectation is taken at standardised Sobol points.

Letters: T_NGVI `curvature_steps`, N_NGVI `fisher_samples` (even), β `fisher_decay`, N_k s_t `fisher`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.infer.ep.tilted.base import Received, Tilted, site_from
from pyro_fed.infer.ep.tilted.chain import Chain
from pyro_fed.infer.sites.gaussian_sites import spread_points
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times


@dataclass(frozen=True, kw_only=True)
class NGVI(Chain):
    """Algorithm 5.

    Args:
        curvature_steps: T_NGVI.
        fisher_samples: N_NGVI.
        fisher_decay: β_NGVI.
    """

    curvature_steps: int
    fisher_samples: int
    fisher_decay: float

    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the chain's mean and the averaged Fisher information."""
        samples, factor = self.samples(problem, received, data, noise)
        mean, batch = self.mean(samples, factor, noise), data.full_batch()
        fisher = self._fisher(problem, mean[None], batch)
        tilted = _tilted(fisher, mean, received.cavity)
        for _ in range(self.curvature_steps):
            average = self._fisher(problem, spread_points(tilted, self.fisher_samples), batch)
            fisher = self.fisher_decay * fisher + (1 - self.fisher_decay) * average
            tilted = _tilted(fisher, mean, received.cavity)
        return site_from(tilted, received.cavity)

    def _fisher(self, problem: Problem, points: Tensor, batch: Batch) -> Tensor:
        return replace(self.derivatives, kind="fisher").of_likelihood(problem, points, batch).curvature


def _tilted(fisher: Tensor, mean: Tensor, cavity: Gaussian) -> Gaussian:
    """N(mean, (fisher + Λ_-k)⁻¹)."""
    q = type(cavity)(fisher + cavity.precision, cavity.eta)
    return type(q)(q.precision, times(q.precision, mean))
