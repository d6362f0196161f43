"""Stein variational gradient descent on the pooled data (Liu & Wang 2016; Algorithm 3 of Kassab & Simeone).

    θ_n ← θ_n + ε/N Σ_j [k(θ_j, θ_n) ∇ log p̃(θ_j) + ∇_{θ_j} k(θ_j, θ_n)]                              (8)
    p̃(θ) = p_0(θ) exp(-L(θ)/α)

Letters: θ `particles`, ε AdaGrad's step, k `kernel`, α `temperature`, -L the log-likelihood of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, batch_of, with_batches
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.stein.particles import ParticleAlgorithm
from pyro_fed.ops.stein import moments_off
from pyro_fed.ops.step_sizes import AdaGradState


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PaperSVGD(ParticleAlgorithm):
    """Centralised SVGD as in the DSVGD paper: `local_steps` steps per round on the pooled data.

    Args:
        entropy: whether to record the exact change of the particles' entropy in each turn (figure `entropy_gain`,
            nats), and `free_energy_change`, of F = KL(q ‖ p_0 p) up to a constant. Costs D passes over the kernel per
            step.

    References:
        Liu & Wang (2016), Stein variational gradient descent. Kassab & Simeone, Algorithm 3, Eq. (8).

    Example:
        >>> idata = pf.run(pf.papers.PaperSVGD(local_steps=200, batch_size=10), fed, num_rounds=20)
    """

    pooled: ClassVar[bool] = True

    def default_rounds(self, num_clients: int) -> int:
        """Ten rounds of `local_steps` steps."""
        return 10

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Draw particles from the prior; AdaGrad's state is kept over the rounds."""
        particles = problem.init(self.num_particles, generator)
        return {"particles": particles}, self.start_optimiser(particles[None])._asdict()

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps on all rows."""
        before, batch = shared["particles"], data.full_batch()
        carry = before, entries_as(AdaGradState, local)
        const, dims = with_batches(data, self.batch_size)
        (particles, optimiser), gains = problem.scan(self._step, carry, const, noise, self.local_steps, dims)
        moment_errors = problem.mapped(self._moments_off, (0, BATCHES))(particles, batch)
        figures = {"mean_off": moment_errors[0], "sd_off": moment_errors[1], **self.entropy_figures(gains)}
        if self.entropy:
            height = problem.mapped(self._height, (0, BATCHES))
            rise = height(particles, batch) - height(before, batch)
            figures["free_energy_change"] = -rise - figures["entropy_gain"]
        return {"particles": particles}, optimiser._asdict(), figures

    def _step(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[Tensor, ...]]:
        particles, optimiser = carry
        return self.step_and_entropy(particles, self._scores(problem, particles, batch_of(const, picks)), optimiser)

    def _height(self, problem: Problem, particles: Tensor, batch: Batch) -> Tensor:
        """Mean log density of the target at the particles, ()."""
        heights: Tensor = problem.vmap(lambda z: problem.log_joint(z, batch, self.temperature))(particles)
        return heights.mean()

    def _scores(self, problem: Problem, particles: Tensor, batch: Batch) -> Tensor:
        def log_target(z: Tensor) -> Tensor:
            return problem.log_joint(z, batch, self.temperature)

        scores: Tensor = problem.vmap(grad(log_target))(particles)
        return scores

    def _moments_off(self, problem: Problem, particles: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return moments_off(particles, self._scores(problem, particles, batch))

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning about moments that contradict the particles' scores."""
        moment_errors = [record.last(name) for name in ("mean_off", "sd_off")]
        if not len(moment_errors[0]):
            return []
        mean_off, sd_off = (float(value[0]) for value in moment_errors)
        if mean_off <= MATTERS and sd_off <= SD_MATTERS:
            return []
        rounds = len(record.figures)
        return [sentences.particles_not_at_rest(rounds=rounds, mean_off=mean_off, sd_off=sd_off)]
