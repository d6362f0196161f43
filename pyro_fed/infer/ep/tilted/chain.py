"""Sites from moments of stochastic gradient chains on the tilted density: "mcmc", "identity", "fisher" and "ngvi".

    ∇ log q̂_k(θ) = ∇ log p_k(θ) + η_-k - Λ_-k θ                         Guo et al., Section 2.2.2

"sgd" is the paper's sampler: SGD with momentum on the potential per row, where minibatches are the only noise. With
`unit` "epochs" it is Algorithm 2 as published: a client's position at the end of each pass over its rows is a sample.
"langevin" injects noise, half of each draw into each of two steps (Leimkuhler & Matthews 2013), which makes the
variance of a Gaussian exact at any stable step size:

    θ_{n+1} = θ_n + h/2 G ∇ log q̂_k(θ_n) + √h A (ξ_n + ξ_{n+1}) / 2

Samples are the positions at every `thin`-th step (or epoch) after `burn_in`. With `preconditioned`, θ moves in units
of G = A A', the inverse of the tilted curvature at q's mean; shrinkage then goes towards G instead of the identity:

    Σ̂ = ρ_n G + (1 - ρ_n) S,   ρ_n = 1 / (1 + (n - 1) ρ),   ρ `shrinkage`      Al-Shedivat et al. (2021), Eq. (8)

In a preconditioned Langevin chain, a control variate reduces the noise of the mean. Without it the noise adds up over
many small clients. The same noise ξ drives a chain u on N(0, I), whose expected mean is zero. Its actual mean ū, a
weighted sum of ξ, is subtracted:

    m̂ = 1/n Σ_n θ_n - A ū,    u_{n+1} = (1 - h/2) u_n + √h (ξ_n + ξ_{n+1}) / 2,   u_0 = 0

The paper's own estimate, `weight` w and `scale` α_cov of "mcmc" (the text has no formula; this is its authors' code):

    Σ̂ = w I + (1 - w) S,    Λ̂ = Σ̂⁻¹ ‖α_cov N_k + Λ_-k‖ / ‖Σ̂⁻¹‖                Table 7: "MCMC Shrinkage" w, "Scale" α_cov

A larger w shrinks S more, but a larger ρ shrinks it less.

"identity" has the precision α_cov N_k + Λ_-k. Section 2.2.2 prints "Σ ← α_cov I", Table 7 calls α_cov a scale per data
point, and the authors' code uses it as the precision that each row adds. If α_cov were the variance of q̂_k, K sites
would have to add up to the precision of one client, and sites of clients of different sizes would diverge.

The inverse of the covariance of n independent samples is too large by n / (n - d - 2) on average (d = 1 for each entry
of a diagonal), and EP would compound it in every round. Unless `weight` is set, "mcmc" divides by it, for the effective
n of a covariance, from the autocorrelations ρ_k of the kept samples of the chain u:

    n / (1 + 2 Σ_k (1 - k/n) ρ_k²),    ρ_k = (1 - h/4) (1 - h/2)^(k `thin` - 1)

"fisher", (L) of the paper, has the Fisher information F at the chain's mean μ as the curvature, and "ngvi", (V),
natural-gradient variational inference, its average under q̂:

    Σ̂ = (c F(μ) + Λ_-k)⁻¹                                                                  Guo et al., Eq. (4)
    s_t = β s_{t-1} + (1 - β) 1/N_k E_{θ ~ N(μ, Σ_{t-1})}[F(θ)],    Σ_t = (N_k s_t + Λ_-k)⁻¹        Algorithm 5

c is 1 in the equations and 500 in the authors' commands, where it is α_cov of Table 7 over the weight decay of 1e-4.
Deviations: s_0 is F(μ) / N_k, which the paper leaves open; expectations use standardised Sobol points.
Letters: T_NGVI `fisher_steps`, N_NGVI `fisher_samples`, β `fisher_decay`, c `fisher_scale`, N_k s_t `fisher`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import (
    Batch,
    ClientData,
    batch_of,
    draw_epochs,
    draw_minibatches,
    epoch_length,
    has_rows,
    with_batches,
)
from pyro_fed.errors import SettingError
from pyro_fed.infer.averaging.optim import SGD
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference, one_newton_step, site_from
from pyro_fed.infer.sites.gaussian_sites import spread_points
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times, times_transposed


class ChainState(NamedTuple):
    """A chain between two steps, (D,)."""

    position: Tensor  # θ
    velocity: Tensor  # of "sgd" with momentum


class ChainConstants(NamedTuple):
    """Constants of the steps of a chain."""

    precision: Tensor  # Λ_-k, (D, D) or its diagonal (D,)
    eta: Tensor  # η_-k, (D,)
    factor: Tensor  # A, (D, D) or its diagonal (D,)
    num_rows: Tensor  # N_k
    rows: Batch | ClientData  # all rows of the client, or those from which minibatches are taken


@dataclass(frozen=True, kw_only=True)
class Chain(TiltedInference):
    """Base of inferences from a chain that starts at the mean of q.

    Args:
        steps: steps of the chain in a round, with the burn-in.
        burn_in: steps before the first sample; fewer than `steps`.
        thin: steps from one sample to the next.
        step_size: of "langevin" the variance of the injected noise, in units of the tilted covariance; of "sgd" the
            learning rate.
        sampler: "langevin" (noise is injected) or "sgd" (minibatches are the only noise, as published).
        momentum: of "sgd", in [0, 1); None takes 0.9. "langevin" has none.
        preconditioned: move in units of the tilted curvature at the mean of q. The step size then does not depend on
            the parameters' units. The paper uses no preconditioner.
        batch_size: rows in a step, weighted to all of the client's; None takes all.
        unit: the unit of `steps`, `burn_in` and `thin`: "steps", or "epochs" of "sgd", in each of which a client takes
            every row once, in minibatches of `batch_size`.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.
    """

    steps: int = 1000
    burn_in: int = 100
    thin: int = 1
    step_size: float = 1.0
    sampler: Literal["langevin", "sgd"] = "langevin"
    momentum: float | None = None
    preconditioned: bool = True
    batch_size: int | None = None
    unit: Literal["steps", "epochs"] = "steps"

    def __post_init__(self) -> None:
        check_choice(self, "sampler", ("langevin", "sgd"))
        check_choice(self, "unit", ("steps", "epochs"))
        check_at_least(self, 1, "steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size")
        name = type(self).__name__
        if self.burn_in >= self.steps:
            raise SettingError(f"{name}: burn_in must be smaller than steps={self.steps}, received {self.burn_in}")
        if self.momentum is not None:
            check_between(self, "momentum", 0, 1, "[)")
            if self.sampler != "sgd":
                raise SettingError(
                    f"{name}: momentum={self.momentum} has no effect: it is a setting of sampler='sgd', not 'langevin'"
                )
        if self.sampler != "sgd":
            refuse_unused(self, "epochs are a unit of sampler='sgd' only", "unit")
        if self.unit == "epochs" and self.batch_size is None:
            raise SettingError(f"{name}: unit='epochs' needs batch_size, the size of its minibatches, received None")

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Minibatches and Langevin noise."""
        if self.unit == "epochs" and self.batch_size is not None:
            return (), draw_epochs(num_rows, self.batch_size, self.steps, generator, problem.dtype)
        xi = torch.randn(self.steps + 1, problem.dim, generator=generator, dtype=torch.float64)
        xi = (xi[1:] + xi[:-1]) / 2
        if self.batch_size is None:
            return xi, ()
        return xi, draw_minibatches(num_rows, self.batch_size, self.steps, generator, problem.dtype)

    def samples(
        self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Samples (n, C, D) and the factor A of G, (C, D) or (C, D, D)."""
        factor = torch.ones_like(received.q.eta)
        if self.preconditioned:
            factor = one_newton_step(numerics, problem, received, data).root()
        batch, dims = with_batches(data, self.batch_size)
        cavity = received.cavity
        start = received.q.mean()
        _, (path,) = problem.scan(
            self._step,
            ChainState(start, torch.zeros_like(start)),
            ChainConstants(cavity.precision, cavity.eta, factor, data.num_rows, batch),
            noise,
            self.steps if self.unit == "steps" else len(noise[1].weight),
            ChainConstants._make((0, 0, 0, 0, dims)),
        )
        if self.unit == "epochs":
            path = self._ends(path, data)
        return path[self.burn_in :: self.thin], factor

    def _ends(self, path: Tensor, data: ClientData) -> Tensor:
        """Positions at the ends of each client's epochs, (E, C, D), from the positions after each step."""
        length = epoch_length(data.num_rows, self.batch_size or 1)
        last = torch.arange(1, self.steps + 1, device=path.device).unsqueeze(-1) * length - 1
        return torch.take_along_dim(path, last.unsqueeze(-1), 0)

    def mean(self, samples: Tensor, factor: Tensor, noise: Noise) -> Tensor:
        """The tilted mean from samples (n, C, D), with the control variate above, (C, D)."""
        if self.sampler != "langevin" or not self.preconditioned:
            return samples.mean(0)
        path = torch.einsum("n,ncd->cd", self._noise_weights().to(samples), noise[0])
        return samples.mean(0) - times(factor, path)

    def _noise_weights(self) -> Tensor:
        """Weight of each step's noise in the mean ū of the kept samples, (steps,)."""
        steps = torch.arange(self.steps, dtype=torch.float64)
        since = steps[self.burn_in :: self.thin].unsqueeze(1) - steps
        decayed = (1 - self.step_size / 2) ** since.clamp_min(0)
        weights: Tensor = self.step_size**0.5 * torch.where(since >= 0, decayed, 0.0).mean(0)
        return weights

    def _step(
        self, problem: Problem, state: ChainState, const: ChainConstants, noise: Any
    ) -> tuple[ChainState, tuple[Tensor]]:
        """A step of "langevin" or "sgd" from one step's noise, and the position after it."""
        (z, velocity), factor, (xi, picks) = state, const.factor, noise
        batch = batch_of(const.rows, picks)
        likelihood = grad(lambda t: problem.log_lik(t, batch))(z.to(problem.dtype)).double()
        score = likelihood + const.eta - times(const.precision, z)
        if self.sampler == "langevin":
            half = times_transposed(factor, score)
            z = z + times(factor, 0.5 * self.step_size * half + self.step_size**0.5 * xi)
        else:
            direction = times(factor, times_transposed(factor, score))
            scale = 1.0 if self.preconditioned else 1.0 / const.num_rows.clamp_min(1).to(z)
            velocity = (SGD.momentum if self.momentum is None else self.momentum) * velocity + direction * scale
            moving = has_rows(picks).to(z) if self.unit == "epochs" else 1.0
            z = z + moving * self.step_size * velocity
        return ChainState(z, velocity), (z,)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class MCMC(Chain):
    """Mean and shrunk covariance of a chain's samples: "M" of Guo et al.

    Args:
        shrinkage: ρ of Al-Shedivat et al. (2021), Eq. (8); larger values shrink the sample covariance less.
        weight: in place of `shrinkage`, the share of the identity (or of G) in the covariance: "MCMC Shrinkage" of Guo
            et al.'s Table 7. Larger values shrink the sample covariance more.
        scale: α_cov: the precision is scaled to the norm of the precision of `Identity(scale=scale)`. None does not
            scale it.

    References:
        Guo et al. (2023), Section 2.2.2. Al-Shedivat et al. (2021), Eq. (8).

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.MCMC(steps=500, thin=5)), fed)
    """

    shrinkage: float = 1.0
    weight: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shrinkage")
        check_positive(self, "scale", allow_none=True)
        if self.weight is not None:
            check_between(self, "weight", 0, 1, "[]")
            refuse_unused(self, "weight determines the shrinkage of the covariance", "shrinkage")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the mean and covariance of the chain's samples."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean, count = self.mean(samples, factor, noise), len(samples)
        weight = 1.0 / (1.0 + (count - 1) * self.shrinkage) if self.weight is None else self.weight
        degrees = count if self.weight is None else max(1, count - 1)
        offset = samples - samples.mean(0)
        full = received.q.dense
        if not full:
            spread = weight * _diagonal(factor) + (1 - weight) * offset.square().sum(0) / degrees
        else:
            matrix = torch.diag_embed(factor) if factor.dim() == 2 else factor
            second = torch.einsum("ncd,nce->cde", offset, offset) / degrees
            spread = weight * matrix @ matrix.mT + (1 - weight) * second
        bias = 1.0 if self.weight is not None else self._inverse_covariance_bias(count, mean.shape[-1] if full else 1)
        tilted = type(received.q).from_moments(mean, spread / bias)
        if self.scale is not None:
            target_precision = _with_rows(received.cavity, self.scale * data.num_rows.double())
            size = torch.linalg.vector_norm(target_precision.flatten(1), dim=1) / torch.linalg.vector_norm(
                tilted.precision.flatten(1), dim=1
            )
            tilted = tilted.power(size)
        return site_from(tilted, received.cavity)

    def _inverse_covariance_bias(self, count: int, dim: int) -> float:
        """E[S⁻¹]⁻¹ in units of the covariance, at least 0.1, for `count` samples of `dim` numbers."""
        lags = torch.arange(1, count, dtype=torch.float64)
        correlations = torch.zeros_like(lags)  # unknown for other chains
        if self.sampler == "langevin" and self.preconditioned:
            correlations = (1 - self.step_size / 4) * (1 - self.step_size / 2) ** (self.thin * lags - 1)
        per_effective_sample = 1 + 2 * float(((1 - lags / count) * correlations.square()).sum())
        return max(1 - (dim + 2) * per_effective_sample / count, 0.1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Identity(Chain):
    """Mean of a chain's samples, and a multiple of the identity for the curvature: "I" of Guo et al.

    Args:
        scale: α_cov, the precision that each row adds to the site: a client of N_k rows has scale · N_k (Table 7's
            footnote: "a per-data-point scale"). None uses the mean variance of the samples as the tilted variance.

    References:
        Guo et al. (2023), Section 2.2.2.

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.Identity(scale=0.05)), fed)
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "scale", allow_none=True)

    @property
    def isotropic(self) -> bool:
        """Whether sites are multiples of the identity, which is so if `scale` is set."""
        return self.scale is not None

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites of scaled identity covariance."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean = self.mean(samples, factor, noise)
        if self.scale is not None:
            precision = _with_rows(received.cavity, self.scale * data.num_rows.double())
            tilted = type(received.q)(precision, times(precision, mean))
            return site_from(tilted, received.cavity)
        variances = samples.var(0, correction=0).mean(-1).unsqueeze(-1).expand_as(mean)
        matrix = torch.diag_embed(variances) if received.q.dense else variances
        return site_from(type(received.q).from_moments(mean, matrix), received.cavity)


def _with_rows(cavity: Gaussian, curvature: Tensor) -> Tensor:
    """Λ_-k plus `curvature` (C,) times the identity."""
    ones = torch.ones_like(cavity.eta) * curvature.unsqueeze(-1)
    return cavity.precision + (torch.diag_embed(ones) if cavity.dense else ones)


def _diagonal(factor: Tensor) -> Tensor:
    return factor.square() if factor.dim() == 2 else factor.square().sum(-1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Fisher(Chain):
    """Mean of a chain's samples, and the Fisher information there as the curvature: "L" of Guo et al. as published.

    `pf.infer.tilted.Laplace` uses the mode by Newton's method in place of a chain's mean, and has no randomness.

    Args:
        fisher_scale: c, factor on the Fisher information; values above 1 make the posterior narrower.

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
        fisher_steps: T_NGVI, steps of the averaged Fisher information.
        fisher_samples: N_NGVI, points under q̂ at which each step computes it; even.
        fisher_decay: β_NGVI, the weight of the previous average, in [0, 1].
        fisher_scale: c, factor on the Fisher information in the message; values above 1 make the posterior narrower.

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
