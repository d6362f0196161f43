"""Stochastic gradient chains on the tilted density, and sites from their moments: "mcmc" and "identity".

    ∇ log q̂_k(θ) = ∇ log p_k(θ) + η_-k - Λ_-k θ                         Guo et al., Section 2.2.2

"sgd" is the paper's sampler: SGD with momentum on the potential a row, whose minibatches are its only noise.
"langevin" injects noise, each draw into two steps by halves (Leimkuhler & Matthews 2013), which leaves the variance
of a Gaussian exact at any stable step size:

    θ_{n+1} = θ_n + h/2 G ∇ log q̂_k(θ_n) + √h A (ξ_n + ξ_{n+1}) / 2

Samples are the positions at every `thin`-th step after `burn_in`. With `preconditioned`, θ moves in units
of G = A A', the inverse of the tilted curvature at q's mean, which frees the step size of the parameters' units;
shrinkage then goes towards G instead of the identity:

    Σ̂ = ρ_n G + (1 - ρ_n) S,   ρ_n = 1 / (1 + (n - 1) `shrinkage`)        Al-Shedivat et al. (2021), Eq. (8)

The mean of a preconditioned Langevin chain has a control variate: the same noise ξ drives the chain of N(0, G), whose
mean would be zero, and what it has instead, a weighted sum of ξ, is taken off:

    m̂ = 1/n Σ_n θ_n - A ū,    u_{n+1} = (1 - h/2) u_n + √h (ξ_n + ξ_{n+1}) / 2,   u_0 = 0

What is left vanishes as the tilted density comes near a Gaussian. Without, every client would add the whole noise of
n samples of q to a q that all of them share, and EP with many small clients would sum it up.

The inverse of a sample covariance is too large by n / (n - d - 2) on average, which EP would compound round by round;
"mcmc" takes it off, with the effective n of a chain of autocorrelation 1 - h/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference, site_from, tilted_scale
from pyro_fed.ops.matrices import times, times_transposed

#: Of the sampler "sgd" where none is set.
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Chain(TiltedInference):
    """What inferences from a chain share; the chain starts at the mean of q.

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
    """

    steps: int = 1000
    burn_in: int = 100
    thin: int = 1
    step_size: float = 1.0
    sampler: Literal["langevin", "sgd"] = "langevin"
    momentum: float | None = None
    preconditioned: bool = True
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_choice(self, "sampler", ("langevin", "sgd"))
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
                raise SettingError(f"{name}: momentum={self.momentum} has no effect: it is a setting of sampler='sgd'")

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Minibatches and Langevin noise."""
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
            factor = tilted_scale(numerics, problem, received, data).root()
        batch, dims = with_batches(data, self.batch_size)
        cavity = received.cavity
        const = ((cavity.precision, cavity.eta, factor, data.num_rows), batch)
        start = received.q.mean()
        _, (path,) = problem.scan(
            self._step, (start, torch.zeros_like(start)), const, noise, self.steps, ((0, 0, 0, 0), dims)
        )
        return path[self.burn_in :: self.thin], factor

    def mean(self, samples: Tensor, factor: Tensor, noise: Noise) -> Tensor:
        """The tilted mean from samples (n, C, D): see the control variate above, (C, D)."""
        if self.sampler != "langevin" or not self.preconditioned:
            return samples.mean(0)
        path = torch.einsum("n,ncd->cd", self._noise_weights().to(samples), noise[0])
        return samples.mean(0) - times(factor, path)

    def _noise_weights(self) -> Tensor:
        """How much each step's noise is worth in the mean ū of the kept samples, (steps,)."""
        steps = torch.arange(self.steps, dtype=torch.float64)
        since = steps[self.burn_in :: self.thin].unsqueeze(1) - steps
        decayed = (1 - self.step_size / 2) ** since.clamp_min(0)
        weights: Tensor = self.step_size**0.5 * torch.where(since >= 0, decayed, 0.0).mean(0)
        return weights

    def _step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, Any]:
        z, velocity = carry
        (precision, eta, factor, num_rows), rows = const
        xi, picks = x
        batch = batch_of(rows, picks)
        likelihood = grad(lambda t: problem.log_lik(t, batch))(z.to(problem.dtype)).double()
        score = likelihood + eta - times(precision, z)
        if self.sampler == "langevin":
            half = times_transposed(factor, score)
            z = z + times(factor, 0.5 * self.step_size * half + self.step_size**0.5 * xi)
        else:
            direction = times(factor, times_transposed(factor, score))
            scale = 1.0 if self.preconditioned else 1.0 / num_rows.clamp_min(1)
            velocity = (MOMENTUM if self.momentum is None else self.momentum) * velocity + direction * scale
            z = z + self.step_size * velocity
        return (z, velocity), (z,)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class MCMC(Chain):
    """Mean and shrunk covariance of a chain's samples: "M" of Guo et al.

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
        shrinkage: ρ; a large one trusts the sample covariance.
        least_factor: smallest correction of the sample precision's bias, for very few samples.

    References:
        Guo et al. (2023), Section 2.2.2. Al-Shedivat et al. (2021), Eq. (8).

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.MCMC(steps=500, thin=5)), fed)
    """

    shrinkage: float = 1.0
    least_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shrinkage", "least_factor")

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the mean and covariance of the chain's samples."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean, count = self.mean(samples, factor, noise), len(samples)
        weight = 1.0 / (1.0 + (count - 1) * self.shrinkage)
        offset = samples - samples.mean(0)
        full = received.q.dense
        if not full:
            spread = weight * _diagonal(factor) + (1 - weight) * offset.square().mean(0)
        else:
            matrix = torch.diag_embed(factor) if factor.dim() == 2 else factor
            second = torch.einsum("ncd,nce->cde", offset, offset) / count
            spread = weight * matrix @ matrix.mT + (1 - weight) * second
        return site_from(
            type(received.q).from_moments(mean, spread / self._unbiased(count, full, mean)), received.cavity
        )

    def _unbiased(self, count: int, full: bool, mean: Tensor) -> float:
        """Factor of the precision: 1 - (d + 2) / n, with d = 1 for a diagonal one; not below `least_factor`."""
        correlation = max(0.0, 1 - self.step_size / 2) if self.sampler == "langevin" and self.preconditioned else 0.0
        effective = count * (1 - correlation) / (1 + correlation)
        return max(1 - ((mean.shape[-1] if full else 1) + 2) / effective, self.least_factor)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Identity(Chain):
    """Mean of a chain's samples, and a multiple of the identity as covariance: "I" of Guo et al.

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
        scale: α_cov, the variance that one row leaves; a client of N_k rows has scale / N_k (Table 7's footnote:
            "a per-data-point scale"). None takes the samples' mean variance.

    References:
        Guo et al. (2023), Section 2.2.2.

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.Identity(scale=0.05)), fed)
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "scale", allow_none=True)

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites of scaled identity covariance."""
        samples, factor = self.samples(problem, numerics, received, data, noise)
        mean = self.mean(samples, factor, noise)
        spread = samples.var(0, correction=0).mean(-1)
        variance = spread if self.scale is None else self.scale / data.num_rows.double()
        variances = variance.unsqueeze(-1).expand_as(mean)
        full = received.q.dense
        matrix = torch.diag_embed(variances) if full else variances
        return site_from(type(received.q).from_moments(mean, matrix), received.cavity)


def _diagonal(factor: Tensor) -> Tensor:
    return factor.square() if factor.dim() == 2 else factor.square().sum(-1)
