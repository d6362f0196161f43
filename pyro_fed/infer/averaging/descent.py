"""Steps of a client on all its rows, none longer than the curvature that its own gradients show allows.

    v ← β v + g_t,    θ' = θ_t + h v,    h = min(α, (1 + β) / L_t)
    L' = ‖g(θ') - g_t‖ / ‖θ' - θ_t‖
    θ_(t+1) = θ',    L_(t+1) = max(L', γ L_t)                             where h L' < 2 (1 + β)
    θ_(t+1) = θ_t,   L_(t+1) ≥ 2 (1 + β) / h,   v ← 0                    else

with g the gradient of the client's objective. Steps of a fixed size h with momentum β on a quadratic of curvature L
diverge if h L > 2 (1 + β). Here no step begins with more than half of that, and a step that turns out to have had more,
as where a rate is an exponential, is taken back. Below the limit steps are of size α, those of SGD. L_0 is that along
the first gradient, found a short way from the start.

Source: Kim et al. (2024), *Adaptive federated learning with auto-tuned clients*, whose clients bound each step by that
quotient. Letters: α `step_size`, β `momentum`, γ `CURVATURE_MEMORY`.

Deviations: α is the longest step, so that SGD that is stable stays as it was; momentum; L falls slowly where Kim et al.
let a step grow slowly; steps are taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_fed.density.problem import Problem

#: Share of a curvature that is left after a step along which the curvature is smaller.
CURVATURE_MEMORY = 0.9
#: Largest ratio of the next step's length to that of a step that was taken back.
LARGEST_SHORTENING = 10.0


class Descending(Protocol):
    """An algorithm whose clients take these steps: its settings, and the gradient of one client's objective."""

    @property
    def step_size(self) -> float: ...

    @property
    def momentum(self) -> float: ...

    @property
    def chain_steps(self) -> int: ...

    def gradient(self, problem: Problem, point: Tensor, const: Any, picks: Any) -> Tensor:
        """The gradient (D,) that a step follows; with all rows, `picks` is ()."""


@dataclass(frozen=True)
class Descent:
    """The steps with an algorithm's settings and gradient, which compare by these so that they are traced once."""

    algorithm: Descending

    def first(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        """The gradient at a point, and the curvature along it."""
        point, *_unknown = carry
        score = self.algorithm.gradient(problem, point, const, ())
        short = _probing_step(point) * score / score.norm().clamp_min(torch.finfo(score.dtype).tiny)
        there = self.algorithm.gradient(problem, point + short, const, ())
        return (point, score, _curvature(point, point + short, there - score)), ()

    def step(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        """One step, and the gradient and curvature at its end."""
        point, velocity, score, curvature = carry
        momentum = self.algorithm.momentum
        velocity, stable = momentum * velocity + score, 1 + momentum
        rate = stable / curvature.clamp_min(stable / self.algorithm.step_size)
        end = point + rate * velocity
        there = self.algorithm.gradient(problem, end, const, ())
        seen = _curvature(point, end, there - score)
        taken = (rate * seen < 2 * stable) & there.isfinite().all()
        steeper = (seen * rate / stable).nan_to_num(LARGEST_SHORTENING).clamp(2.0, LARGEST_SHORTENING) * stable / rate
        curvature = torch.where(taken, torch.maximum(seen, CURVATURE_MEMORY * curvature), steeper)
        known = torch.where(taken, end, point), torch.where(taken, velocity, 0.0), torch.where(taken, there, score)
        return (*known, curvature), ()


def descent_ends(problem: Problem, algorithm: Descending, point: Tensor, const: Any, dims: Any) -> Tensor:
    """The points (C, D) where the steps of C clients from `point` (C, D) end; `dims` are the client axes of `const`."""
    still, descent = torch.zeros_like(point), Descent(algorithm)
    (_, score, curvature), _ = problem.scan(descent.first, (point, still, still[:, 0]), const, (), 1, dims)
    (found, *_), _ = problem.scan(
        descent.step, (point, still, score, curvature), const, (), algorithm.chain_steps, dims
    )
    end: Tensor = found
    return end


def _curvature(point: Tensor, end: Tensor, change: Tensor) -> Tensor:
    """L (), from a step and the gradients' change by it; zero if the step is lost in rounding."""
    moved = (end - point).norm()
    seen = change.norm() / moved.clamp_min(torch.finfo(moved.dtype).tiny)
    return torch.where(moved >= _probing_step(point) / 2, seen, 0.0)


def _probing_step(point: Tensor) -> Tensor:
    """A step () short enough for a straight line, and long enough for a difference of gradients."""
    shortest: Tensor = torch.finfo(point.dtype).eps ** 0.5 * (1 + point.norm())
    return shortest
