"""Settings, particles at a server, and diagnostics of SVGD and its distributed forms.

With `entropy` a run records the change of the entropy of the particles' density by its steps. Source: Liu & Wang
(2016), Lemma 1 and Theorem 3.1; Kassab & Simeone, Theorem 2; Yang, Liu & Kassab, Lemmas 1 and 2.

    T(θ) = θ + ε φ(θ),    H[T q] = H[q] + E_q log |det(I + ε ∇φ(θ))|
    F(q) = E_q[-log p̃] - H[q],    d/dε F(T q) = -S(q, p̃) at ε = 0

A step is a map of the whole space, so that the change is a mean over the particles, without an estimate of the density.
With AdaGrad, ε differs between particles and coordinates, and is treated as constant around each particle.

Letters: ε `rates`, φ as in `ops.stein`, S the squared KSD (V-statistic).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Algorithm, Noise, State
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import draw_minibatches
from pyro_fed.errors import SettingError
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.kernels import MEDIAN_RBF
from pyro_fed.ops.stein import spread, stein_inner_product, svgd_direction
from pyro_fed.ops.step_sizes import AdaGrad, AdaGradState


def entropy_gain(particles: Tensor, scores: Tensor, kernel: Kernel, rates: Tensor | float) -> Tensor:
    """Mean over the particles (N, D), before the step, of log |det(I + ε ∇φ)|, in nats, with ε `rates`."""
    fitted_kernel = kernel.fit(particles, scores)
    axes = torch.eye(particles.shape[-1], dtype=particles.dtype, device=particles.device)

    def along(at: Tensor, axis: Tensor) -> Tensor:
        value: Tensor = (fitted_kernel.velocity(at[None], particles, scores)[0] * axis).sum()
        return value

    slopes = vmap(vmap(grad(along), (None, 0)), (0, None))(particles, axes)
    scaled = slopes * torch.as_tensor(rates, dtype=slopes.dtype, device=slopes.device).expand_as(particles)[..., None]
    gain: Tensor = torch.linalg.slogdet(axes + scaled)[1].mean()
    return gain


@dataclass(frozen=True, kw_only=True)
class ParticleAlgorithm(Algorithm):
    """Particles (N, D) at a server, moved by SVGD.

    Args:
        num_particles: N, at least 2.
        local_steps: L, SVGD steps a round.
        step_size: learning rate of AdaGrad at the beginning, in the units of the unconstrained scale.
        momentum: weight of the past in AdaGrad's running mean of squares, in [0, 1).
        fudge: added to the root of that mean.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        kernel: of the SVGD direction, of `pyro_fed.ops`; the default is RBF with the median heuristic.
        entropy: keep by how much each turn changes the particles' entropy, exactly (figure `entropy_gain`, nats); costs
            D passes over the kernel a step.
    """

    draws_are: ClassVar[str] = "particles"
    indicators: ClassVar[tuple[str, ...]] = ("ksd", "hip")
    #: Smallest value of `num_particles`.
    fewest_particles: ClassVar[int] = 2

    num_particles: int = 100
    local_steps: int = 200
    step_size: float = 0.05
    momentum: float = 0.9
    fudge: float = 1e-9
    batch_size: int | None = None
    temperature: float = 1.0
    kernel: Kernel = field(default=MEDIAN_RBF)
    entropy: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, self.fewest_particles, "num_particles")
        check_at_least(self, 1, "local_steps")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", "fudge", "temperature")
        check_between(self, "momentum", 0, 1, "[)")

    @property
    def optimiser(self) -> AdaGrad:
        """AdaGrad with momentum (Table 3)."""
        return AdaGrad(rate=self.step_size, momentum=self.momentum, fudge=self.fudge)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Minibatches of a round's steps, or nothing if all rows are taken."""
        if self.batch_size is None:
            return ()
        return draw_minibatches(num_rows, self.batch_size, self.local_steps, generator, problem.dtype)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Adopt the particles that the client sent."""
        self.require_one(weights)
        return {**shared, "particles": messages["particles"][0]}

    def require_one(self, weights: Tensor) -> None:
        """Refuse a round in which several clients moved the particles."""
        if len(weights) != 1:
            raise SettingError(
                f"{type(self).__name__} adopts one client's particles a round, but {len(weights)} clients worked: "
                "schedule one client a round, such as RoundRobin()"
            )

    def positions(self, shared: State) -> Tensor:
        """The global particles (N, D), in the coordinates in which they move."""
        return shared["particles"]

    def importance(self, kind: str, shared: State, reports: State) -> Tensor:
        """A client's KSD, Eq. (17) of Yang et al., or its inner product with all clients, Eq. (19) and (24)."""
        if kind == "ksd":
            return reports["ksd"]
        particles, scores = self.positions(shared), reports["scores"]
        together = scores.mean(0)
        products = [stein_inner_product(particles, own, together, self.kernel) for own in scores]
        return torch.stack(products).clamp_min(0)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Root mean square move of the particles, in units of their spread, and the spread, in unconstrained units."""
        moved = (after["particles"] - before["particles"]).square().mean().sqrt()
        width = spread(after["particles"]).square().mean().sqrt()
        # One particle has no spread: its move is in unconstrained units.
        return {"change": float(moved / width if width > 0 else moved), "spread": float(width)}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The N particles, (1, N, D), which are not independent draws."""
        return shared["particles"][None]

    def start_optimiser(self, particles: Tensor) -> AdaGradState:
        """AdaGrad's state for C clients, from particles (C, N, D)."""
        return AdaGradState(torch.zeros_like(particles), particles.new_zeros(len(particles)))

    def move(
        self, particles: Tensor, scores: Tensor, optimiser: AdaGradState, step_factor: Tensor | float = 1.0
    ) -> tuple[Tensor, AdaGradState]:
        """One SVGD step, Eq. (8): particles (N, D), scores (N, D), and a factor of the step."""
        increment, optimiser = self.optimiser.step(svgd_direction(particles, scores, self.kernel), optimiser)
        return particles + step_factor * increment, optimiser

    def step_and_entropy(
        self, particles: Tensor, scores: Tensor, optimiser: AdaGradState, step_factor: Tensor | float = 1.0
    ) -> tuple[tuple[Tensor, AdaGradState], tuple[Tensor, ...]]:
        """One SVGD step as the step of a scan, with its change of the entropy if that is recorded."""
        moved, after = self.move(particles, scores, optimiser, step_factor)
        if not self.entropy:
            return (moved, after), ()
        rates = step_factor * self.optimiser.rates(after)
        return (moved, after), (entropy_gain(particles, scores, self.kernel, rates),)

    def entropy_figures(self, gains: tuple[Tensor, ...]) -> State:
        """The changes of the entropy by the steps of a scan, (L, C); empty if they are not recorded."""
        return {"entropy_gain": gains[0].sum(0)} if gains else {}
