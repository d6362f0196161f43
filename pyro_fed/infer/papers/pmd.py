"""Particle mirror descent on the pooled data: a weighted kernel density estimate, moved by importance weights.

Source: Dai, He, Dai & Song (2016), *Provable Bayesian inference via particle mirror descent*, Algorithm 1 with the
weighted kernel density estimator.

    q_1 = p,    θ_i ~ q_t,    g_t(θ) = log q_t(θ) - log p(θ) - N/m Σ_batch log p(x | θ)
    α_i ∝ exp(-γ_t g_t(θ_i)),    q_{t+1}(θ) = Σ_i α_i K_h(θ - θ_i)

This is a step of stochastic mirror descent on KL(q ‖ posterior) by Monte Carlo, to q_t^(1-γ_t) (p p(y | ·))^γ_t.

Letters: θ `particles` (M, D), log α `log_weights`, γ `step_size` with its decay, h `bandwidth`, m `batch_size`.

Deviations, both settings, both off in `inference/pmd_paper.toml`:

* `bandwidth=None`: K_h has h² times the particles' own covariance, with Silverman's h, and its centres are shrunk
  towards the particles' mean by √(1 - h²) (Liu & West, 2001), so that the estimate is no wider than the particles. As
  in the paper, a number is the SD of isotropic kernels, in the model's own units, which widens q by h² in every step.
* `min_effective`: γ_t is reduced until the effective number of particles is that share of all. With all rows γ_1 = 1 is
  importance sampling from the prior, after which a single particle tends to have all the weight.

Limits: no gradient is used, and the number of particles that a kernel density estimate needs grows exponentially with
D. The method works for two parameters and fails for twenty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, batch_of, draw_independent_minibatches, with_batches
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.backtrack import HALVINGS
from pyro_fed.ops.step_sizes import polynomial_step

#: Ridge of the particles' covariance, a share of its mean variance: it is singular if fewer than D particles have
#: weight.
RIDGE = 1e-8
#: Smallest share of effective particles: below it a run warns of the last weights.
LEAST_EFFECTIVE_SHARE = 0.05


class WeightedParticles(NamedTuple):
    """The server's state: θ_i (M, D), normalised log α_i (M,), and the number of steps so far, ()."""

    particles: Tensor
    log_weights: Tensor
    steps: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and SDs, (D,)."""
        weights = self.log_weights.exp()
        mean = weights @ self.particles
        return mean, (weights @ (self.particles - mean).square()).sqrt()


class Estimate(NamedTuple):
    """q = Σ_i α_i K(θ - c_i): c_i (M, D), normalised log α_i (M,), and the Cholesky factor of K's covariance (D, D)."""

    centres: Tensor
    log_weights: Tensor
    root: Tensor

    def draws(self, uniform: Tensor, normal: Tensor) -> Tensor:
        """Draws (S, D): centres by inversion of the weights' distribution function, plus the kernel's noise."""
        index = (uniform[:, None] > self.log_weights.exp().cumsum(-1)).sum(-1)
        return self.centres[index.clamp_max(len(self.centres) - 1)] + normal @ self.root.mT

    def log_density(self, at: Tensor) -> Tensor:
        """log q at points (P, D): (P,)."""
        white = torch.linalg.solve_triangular(self.root, torch.cat([at, self.centres]).mT, upper=False).mT
        offset = white[: len(at), None, :] - white[None, len(at) :, :]
        log_kernels = -0.5 * offset.square().sum(-1) - 0.5 * at.shape[-1] * math.log(2 * math.pi)
        log_mean: Tensor = (log_kernels + self.log_weights).logsumexp(-1)
        return log_mean - self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PMD(Algorithm):
    """Particle mirror descent: weighted particles drawn anew from a kernel density estimate in every step.

    Args:
        num_particles: M, at least 2.
        local_steps: steps per round.
        step_size: γ_1, in (0, 1].
        decay: exponent in [0, 1] of γ_t = step_size (1 + t / decay_offset)^-decay, t from 0; 0 keeps γ constant.
        decay_offset: steps after which γ has fallen by 2^-decay; only with a `decay`.
        bandwidth: h, the SD of isotropic kernels on the unconstrained scale; None takes Silverman's share of the
            particles' covariance.
        min_effective: γ_t is reduced until the effective number is this share of all particles, in (0, 1); None: never.
        batch_size: rows per step, weighted to represent all; None takes all.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    References:
        Dai, He, Dai & Song (2016), Algorithm 1.

    Example:
        >>> idata = pf.run(pf.papers.PMD(num_particles=500), fed)
    """

    pooled: ClassVar[bool] = True
    draws_are: ClassVar[str] = "independent"

    num_particles: int = 500
    local_steps: int = 20
    step_size: float = 1.0
    decay: float = 0.0
    decay_offset: float = 1.0
    bandwidth: float | None = None
    min_effective: float | None = 0.3
    batch_size: int | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_particles")
        check_at_least(self, 1, "local_steps")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_between(self, "step_size", 0, 1, "(]")
        check_between(self, "decay", 0, 1, "[]")
        check_positive(self, "decay_offset", "temperature")
        check_positive(self, "bandwidth", allow_none=True)
        if self.min_effective is not None:
            check_between(self, "min_effective", 0, 1, "()")
        if self.decay == 0:
            refuse_unused(self, "the step is constant; give decay, such as 0.5", "decay_offset")

    def default_rounds(self, num_clients: int) -> int:
        """Three rounds of `local_steps` steps."""
        return 3

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Draw particles from the prior, with equal weights."""
        particles = problem.sample_prior(self.num_particles, generator)
        level = torch.full_like(particles[:, 0], -math.log(self.num_particles))
        return WeightedParticles(particles, level, torch.zeros_like(level[0]))._asdict(), {}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Each particle's uniform number, which chooses its centre, and normal vector, which moves it; minibatches."""
        shape = (self.local_steps, self.num_particles)
        noise = {
            "uniform": torch.rand(shape, generator=generator, dtype=problem.dtype),
            "normal": torch.randn(*shape, problem.dim, generator=generator, dtype=problem.dtype),
        }
        if self.batch_size is None:
            return noise
        return noise | {
            "picks": draw_independent_minibatches(num_rows, self.batch_size, self.local_steps, generator, problem.dtype)
        }

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take steps of mirror descent."""
        (rows, axes), before = with_batches(data, self.batch_size), entries_as(WeightedParticles, shared)
        after, (step_sizes, effective) = problem.scan(self._step, before, rows, noise, self.local_steps, axes)
        return after._asdict(), {}, {"step_taken": step_sizes[-1], "effective": effective[-1]}

    def _step(
        self, problem: Problem, before: WeightedParticles, rows: Any, noise: Any
    ) -> tuple[WeightedParticles, Any]:
        q, steps = self._density_estimate(before), before.steps
        moved = q.draws(noise["uniform"], noise["normal"])
        first = steps == 0
        # q_1 is the prior, from which the first particles are drawn.
        particles = torch.where(first, before.particles, moved)
        target, prior = self._targets(problem, particles, batch_of(rows, noise.get("picks")))
        log_q = torch.where(first, prior, q.log_density(particles))
        # Particles where the prior, the likelihood or q vanishes get no weight.
        gain = torch.nan_to_num(target - log_q, nan=-torch.inf, posinf=-torch.inf).to(moved.dtype)
        wanted = polynomial_step(steps, self.step_size * self.decay_offset**self.decay, self.decay_offset, self.decay)
        step_size = self._limited_step_size(gain, wanted * torch.ones_like(steps))
        level = torch.log_softmax(step_size * gain, -1)
        return WeightedParticles(particles, level, steps + 1), (
            step_size,
            _effective_particles(level) / self.num_particles,
        )

    def _targets(self, problem: Problem, particles: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p p(y | ·)^(1/α), and log p: (M,) each."""

        def parts(z: Tensor) -> tuple[Tensor, Tensor]:
            prior, pointwise = problem.log_parts(z, batch.rows)
            return prior + (pointwise * batch.weight).sum() / self.temperature, prior

        target, prior = problem.vmap(parts)(particles)
        return target, prior

    def _limited_step_size(self, gain: Tensor, wanted: Tensor) -> Tensor:
        """The largest γ up to `wanted` for which the effective number of particles is large enough."""
        if self.min_effective is None:
            return wanted
        min_effective, low, high = self.min_effective * self.num_particles, torch.zeros_like(wanted), wanted
        enough_at_wanted = _effective_particles(torch.log_softmax(wanted * gain, -1)) >= min_effective
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            enough_at_middle = _effective_particles(torch.log_softmax(middle * gain, -1)) >= min_effective
            low, high = torch.where(enough_at_middle, middle, low), torch.where(enough_at_middle, high, middle)
        return torch.where(enough_at_wanted, wanted, low)

    def _density_estimate(self, weighted: WeightedParticles) -> Estimate:
        """The kernel density estimate of weighted particles."""
        particles, log_weights, _ = weighted
        count, dim = particles.shape
        eye = torch.eye(dim, dtype=particles.dtype, device=particles.device)
        if self.bandwidth is not None:
            return Estimate(particles, log_weights, self.bandwidth * eye)
        share = (4 / ((dim + 2) * count)) ** (1 / (dim + 4))
        weights = log_weights.exp()
        mean = weights @ particles
        offset = particles - mean
        covariance = (weights[:, None] * offset).mT @ offset
        covariance = covariance + RIDGE * covariance.diagonal(dim1=-2, dim2=-1).mean() * eye
        root, _ = torch.linalg.cholesky_ex(covariance)
        return Estimate(mean + math.sqrt(1 - share**2) * offset, log_weights, share * root)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return {name: value[0] for name, value in messages.items()}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The effective number of particles, and the change of the mean in SDs."""
        new = entries_as(WeightedParticles, after)
        (old_mean, _), (mean, sd) = entries_as(WeightedParticles, before).moments(), new.moments()
        change = ((mean - old_mean).abs() / sd).amax()
        return {"change": float(change), "effective_particles": float(_effective_particles(new.log_weights))}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Independent draws of the last q, (1, num_draws, D)."""
        q = self._density_estimate(entries_as(WeightedParticles, shared))
        uniform = torch.rand(num_draws, generator=generator, dtype=q.centres.dtype)
        normal = torch.randn(num_draws, q.centres.shape[1], generator=generator, dtype=q.centres.dtype)
        return q.draws(uniform, normal)[None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density of the last q."""
        q = self._density_estimate(entries_as(WeightedParticles, shared))
        return q.log_density(draws.reshape(-1, draws.shape[-1]).to(q.centres.dtype)).reshape(draws.shape[:-1])

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about a step size that is limited to the end, and about few particles with all the weight."""
        step_sizes, effective = record.last("step_taken"), record.last("effective")
        if not len(step_sizes):
            return []
        if self.min_effective is not None and self.decay == 0 and float(step_sizes[0]) < self.step_size:
            return [sentences.step_held_back(step=float(step_sizes[0]), of_step=self.step_size)]
        if float(effective[0]) >= LEAST_EFFECTIVE_SHARE:
            return []
        return [sentences.few_particles_have_weight(share=float(effective[0]), particles=self.num_particles)]


def _effective_particles(level: Tensor) -> Tensor:
    """Effective number of particles with normalised log weights (M,)."""
    return 1 / level.exp().square().sum(-1)
