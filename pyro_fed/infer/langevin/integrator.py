"""One step of a Langevin chain, whatever estimates its score.

    η = √h A ξ,    ξ ~ N(0, I)
    θ' = θ + h/2 A A' v(θ) + η                        (1) of el Mekkaoui et al., in coordinates A⁻¹ θ
    θ' = θ + h/2 A A' v(θ + η/2) + η                  midpoint, draws at θ + η/2

G = A A' is the preconditioner, A = I in the papers. The midpoint rule takes the score and the draw half a noise further
(Leimkuhler & Matthews, 2013, in the form of Vilmart, 2015). With exact scores the variance at a Gaussian target is then
exact for every stable h, while that of Eq. (1) is too large by a factor of 1/(1 - hλ/4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, batch_of
from pyro_fed.infer.langevin.gradients import Memory, Score
from pyro_fed.ops.langevin import drifted, injected, pulled


class LangevinState(NamedTuple):
    """A chain between two steps: its position θ, (D,), and the memory of the score's estimate."""

    position: Tensor
    memory: Memory = ()


class Client(NamedTuple):
    """Constants of the steps of a visit.

    Attributes:
        score: estimates v.
        factor: A, (D, D) or its diagonal (D,).
        rows: all rows of the client, or those to pick minibatches from.
    """

    score: Score
    factor: Tensor
    rows: Batch | ClientData


class StepInput(NamedTuple):
    """Inputs of one step.

    Attributes:
        normal: ξ, (D,).
        step_size: h.
        picks: the minibatch; () if all rows are taken.
    """

    normal: Tensor
    step_size: Tensor
    picks: Any = ()


class Trace(NamedTuple):
    """Output of a step: the draw (D,) that is judged and kept, and the norm |A' v| of the preconditioned score."""

    draw: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Integrator:
    """A step of Eq. (1), or of the midpoint rule."""

    midpoint: bool

    def step(self, problem: Problem, state: LangevinState, client: Client, x: StepInput) -> tuple[LangevinState, Trace]:
        """The chain after a step, and the step's output."""
        noise = injected(x.step_size, x.normal, client.factor)
        where = state.position + 0.5 * noise if self.midpoint else state.position
        batch = batch_of(client.rows, x.picks)
        score, memory = client.score.estimate(problem, where, batch, x.picks, state.memory)
        pull = pulled(score, client.factor)
        after = drifted(state.position, pull, x.step_size, noise, client.factor)
        return LangevinState(after, memory), Trace(where if self.midpoint else after, pull.norm())
