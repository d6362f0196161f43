"""The Fisher information at a chain's mean as the curvature, Eq. (4), and averaged over q̂, Algorithm 5.

"fisher", (L) of the paper:

    Σ̂ = (c F(μ) + Λ_-k)⁻¹                                                                  Guo et al., Eq. (4)

and "ngvi", natural-gradient variational inference, (V):

    s_t = β s_{t-1} + (1 - β) 1/N_k E_{θ ~ N(μ, Σ_{t-1})}[F(θ)],    Σ_t = (N_k s_t + Λ_-k)⁻¹

μ is the mean of a chain (see `tilted.chain`), as for the paper's other inferences; F the Fisher information; c is 1 in
the equations, and in the authors' commands 500, which is α_cov of Table 7 over their weight decay of 1e-4.
Deviations: s_0 is F(μ) / N_k, which the paper leaves open; the expectation is taken at standardised Sobol points.

Letters: T_NGVI `fisher_steps`, N_NGVI `fisher_samples` (even), β `fisher_decay`, c `fisher_scale`, N_k s_t `fisher`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, site_from
from pyro_fed.infer.ep.tilted.chain import Chain
from pyro_fed.infer.sites.gaussian_sites import spread_points
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Fisher(Chain):
    """Mean of a chain's samples, and the Fisher information there as the curvature: "L" of Guo et al. as published.

    `pf.infer.tilted.Laplace` has the mode by Newton's method in place of a chain's mean, and no randomness.

    Args:
        steps: steps of the chain a round, with the burn-in.
        burn_in: steps before the first sample; fewer than `steps`.
        thin: steps from one sample to the next.
        step_size: of "langevin" the variance of the injected noise, in units of the tilted covariance; of "sgd" the
            learning rate.
        sampler: "langevin" (noise is injected) or "sgd" (minibatches are the only noise, as published).
        momentum: of "sgd", in [0, 1); None takes 0.9. "langevin" has none.
        preconditioned: move in units of the tilted curvature at the mean of q, which frees the step size of the
            parameters' units; the paper does not.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        unit: the unit of `steps`, `burn_in` and `thin`: "steps", or "epochs" of "sgd", in each of which a client takes
            every row once, in minibatches of `batch_size`.
        fisher_scale: c, how many times the Fisher information counts; beyond 1 the posterior is colder.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Guo et al. (2023), Eq. (4).

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.Fisher(steps=500)), fed)
    """

    fisher_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "fisher_scale")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the chain's mean and the Fisher information there."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean = self.mean(samples, factor, noise)
        fisher = _fisher(problem, numerics, mean[None], data.full_batch())
        return site_from(_tilted(self.fisher_scale * fisher, mean, received.cavity), received.cavity)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class NGVI(Chain):
    """Mean of a chain's samples, covariance by natural-gradient variational inference: "V" of Guo et al.

    Args:
        steps: steps of the chain a round, with the burn-in.
        burn_in: steps before the first sample; fewer than `steps`.
        thin: steps from one sample to the next.
        step_size: of "langevin" the variance of the injected noise, in units of the tilted covariance; of "sgd" the
            learning rate.
        sampler: "langevin" (noise is injected) or "sgd" (minibatches are the only noise, as published).
        momentum: of "sgd", in [0, 1); None takes 0.9. "langevin" has none.
        preconditioned: move in units of the tilted curvature at the mean of q, which frees the step size of the
            parameters' units; the paper does not.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        unit: the unit of `steps`, `burn_in` and `thin`: "steps", or "epochs" of "sgd", in each of which a client takes
            every row once, in minibatches of `batch_size`.
        fisher_steps: T_NGVI, steps of the averaged Fisher information.
        fisher_samples: N_NGVI, points under q̂ at which each step takes it; even.
        fisher_decay: β_NGVI, the weight of what was averaged before, in [0, 1].
        fisher_scale: c, how many times the Fisher information counts in what is sent; beyond 1 the posterior is colder.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Guo et al. (2023), Algorithm 5.

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.NGVI(fisher_steps=5)), fed)
    """

    fisher_steps: int = 10
    fisher_samples: int = 16
    fisher_decay: float = 0.9
    fisher_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "fisher_scale")
        check_at_least(self, 1, "fisher_steps")
        check_between(self, "fisher_decay", 0, 1, "[]")
        if self.fisher_samples < 2 or self.fisher_samples % 2:
            raise SettingError(f"NGVI: fisher_samples must be even and at least 2, received {self.fisher_samples}")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the chain's mean and the averaged Fisher information."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean, batch = self.mean(samples, factor, noise), data.full_batch()
        fisher = _fisher(problem, numerics, mean[None], batch)
        tilted = _tilted(fisher, mean, received.cavity)
        for _ in range(self.fisher_steps):
            average = _fisher(problem, numerics, spread_points(tilted, self.fisher_samples), batch)
            fisher = self.fisher_decay * fisher + (1 - self.fisher_decay) * average
            tilted = _tilted(fisher, mean, received.cavity)
        return site_from(_tilted(self.fisher_scale * fisher, mean, received.cavity), received.cavity)


def _fisher(problem: Problem, numerics: Numerics, points: Tensor, batch: Batch) -> Tensor:
    return replace(numerics.derivatives, kind="fisher").of_likelihood(problem, points, batch).curvature


def _tilted(fisher: Tensor, mean: Tensor, cavity: Gaussian) -> Gaussian:
    """N(mean, (fisher + Λ_-k)⁻¹)."""
    q = type(cavity)(fisher + cavity.precision, cavity.eta)
    return type(q)(q.precision, times(q.precision, mean))
