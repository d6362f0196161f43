"""A client's SGD steps from the server's point; steps on all rows are bounded by the curvature of its gradients.

    v ← β v + g_t,    θ' = θ_t + h v,    h = min(α, (1 + β) / L_t)
    L' = ‖g(θ') - g_t‖ / ‖θ' - θ_t‖
    θ_(t+1) = θ',    L_(t+1) = max(L', γ L_t)                             if h L' < 2 (1 + β)
    θ_(t+1) = θ_t,   L_(t+1) ≥ 2 (1 + β) / h,   v ← 0                    otherwise

with g the gradient of the client's objective. Steps of a fixed size h with momentum β on a quadratic of curvature L
diverge if h L > 2 (1 + β). Here a step begins with h L_t at most half of that. If h L' is then above the limit, as
where a rate is an exponential, the step is rejected. Below the limit, and on minibatches, steps are those of SGD. L_0
is the curvature along the first gradient, by a difference over a short distance.

Source: Kim et al. (2024), *Adaptive federated learning with auto-tuned clients*, whose clients bound each step by L'.
Letters: α `step_size`, β `momentum`, γ `CURVATURE_MEMORY`. Deviations: α bounds the step; there is momentum; L falls
slowly, where Kim et al. let a step grow slowly; steps may be rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.bounding import relative_rows, within_cohort
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.record import RECENT_ROUNDS, Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import (
    Batch,
    ClientData,
    Minibatch,
    batch_of,
    draw_epochs,
    draw_minibatches,
    has_rows,
    with_batches,
)
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.records import entries_as

#: Factor γ by which the curvature falls at most in one step.
CURVATURE_MEMORY = 0.9
#: Largest factor by which the step is shortened after a rejected one.
MAX_SHORTENING = 10.0
#: Largest ratio of the mean length of the last steps to that of the middle ones: steps on minibatches keep their
#: length, and steps that converge become shorter.
MAX_STEP_GROWTH = 2.0


@dataclass(frozen=True)
class StepContributions(Contributions):
    """Contributions to algorithms such as `FedAvg`, whose clients send their steps as `delta`."""

    obstacle: str = ""

    def bounding_obstacle(self) -> str | None:
        """The reason why the steps cannot be bounded, and the cure; "" if they can be."""
        return self.obstacle

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Clip every number of a step to the cohort's range."""
        rows = sent.own_rows
        deltas = sent.messages["delta"]
        row_ratio = None if rows is None else relative_rows(rows, deltas.double())
        clipped, cut = within_cohort(deltas, limits.pull, row_ratio)
        return BoundedMessages(shared, {**sent.messages, "delta": clipped}, {}, cut)


class Server(NamedTuple):
    """The server's state without its optimiser's, which clients receive: θ (D,) or (C, D), and N, () or (C,)."""

    point: Tensor
    num_rows: Tensor


class Objective(NamedTuple):
    """The inputs of a client's log density per row, log p_k / N_k + log p_0 / N; leading axes are clients."""

    divisor: Tensor  # N_k, which divides the log-likelihood
    num_rows: Tensor  # N
    data: Batch | ClientData  # the client's rows, or those of a step


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Algorithm):
    """Base of algorithms whose clients take SGD steps from the server's point.

    Args:
        chain_steps: L, SGD steps per round, or epochs, see `unit`.
        step_size: SGD's step size, on the log-likelihood per row; steps on all rows are at most as long as the
            curvature allows.
        momentum: SGD's momentum.
        batch_size: rows per step; None takes all.
        unit: unit of `chain_steps`: "steps", or "epochs". In an epoch a client takes every row once, in minibatches
            of `batch_size`, so that clients of any size make equally many passes over their rows.
        prior: whether to add the client's share of the log prior.
    """

    draws_are: ClassVar[str] = "point"
    additive: ClassVar[bool] = True

    chain_steps: int = 20
    step_size: float = 0.01
    momentum: float = 0.9
    batch_size: int | None = None
    unit: Literal["steps", "epochs"] = "steps"
    prior: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "chain_steps")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size")
        check_between(self, "momentum", 0, 1, "[)")
        check_choice(self, "unit", ("steps", "epochs"))
        if self.unit == "epochs" and self.batch_size is None:
            raise SettingError(
                f"{type(self).__name__}: unit='epochs' needs batch_size, the size of its minibatches, received None"
            )

    def default_rounds(self, num_clients: int) -> int:
        """A hundred rounds, whatever the number of clients."""
        return 100

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start near the prior's mean, farther away if gradients vanish there, or at zero without a mean."""
        return Server(problem.central_start(generator), torch.tensor(problem.num_rows))._asdict(), {}

    def download(self, shared: State, clients: Tensor) -> State:
        """The server's point, which clients receive."""
        return super().download(entries_as(Server, shared)._asdict(), clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Minibatches of a round."""
        if self.batch_size is None:
            return ()
        if self.unit == "epochs":
            return draw_epochs(num_rows, self.batch_size, self.chain_steps, generator, problem.dtype)
        return draw_minibatches(num_rows, self.batch_size, self.chain_steps, generator, problem.dtype)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of SGD."""
        server = entries_as(Server, shared)
        point = self.descended(problem, server.point, *self.objective(server, data, data.num_rows), noise)
        return {"delta": point - server.point}, {}, {}

    def objective(self, server: Server, data: ClientData, divisor: Tensor) -> tuple[Objective, Objective]:
        """The objectives of C clients, with log-likelihoods divided by `divisor` (C,), and their client axes."""
        rows, axes = with_batches(data, self.batch_size)
        return Objective(divisor, server.num_rows, rows), Objective._make((0, 0, axes))

    def descended(self, problem: Problem, point: Tensor, const: Any, dims: Any, noise: Noise) -> Tensor:
        """The points (C, D) after L steps of C clients from `point` (C, D); `dims` are the client axes of `const`."""
        zero = torch.zeros_like(point)
        end: Tensor
        if self.batch_size is None:
            (_, score, curvature), _ = problem.scan(
                self._first_curvature, (point, zero, zero[:, 0]), const, (), 1, dims
            )
            carry = (point, zero, score, curvature)
            (end, *_), _ = problem.scan(self._bounded_step, carry, const, (), self.chain_steps, dims)
            return end
        count = len(noise.weight) if self.unit == "epochs" else self.chain_steps
        (end, _), _ = problem.scan(self._step, (point, zero), const, noise, count, dims)
        return end

    def _first_curvature(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        """The gradient at a point, and the curvature along it."""
        point, *_unknown = carry
        score = self.gradient(problem, point, const, ())
        offset = _probing_step(point) * score / score.norm().clamp_min(torch.finfo(score.dtype).tiny)
        moved_score = self.gradient(problem, point + offset, const, ())
        return (point, score, _curvature(point, point + offset, moved_score - score)), ()

    def _bounded_step(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        """Take one step on all rows, bounded by the curvature, and update the gradient and the curvature."""
        point, velocity, score, curvature = carry
        velocity, stable = self.momentum * velocity + score, 1 + self.momentum
        rate = stable / curvature.clamp_min(stable / self.step_size)
        end = point + rate * velocity
        new_score = self.gradient(problem, end, const, ())
        new_curvature = _curvature(point, end, new_score - score)
        accepted = (rate * new_curvature < 2 * stable) & new_score.isfinite().all()
        steeper = (new_curvature * rate / stable).nan_to_num(MAX_SHORTENING).clamp(2.0, MAX_SHORTENING) * stable / rate
        curvature = torch.where(accepted, torch.maximum(new_curvature, CURVATURE_MEMORY * curvature), steeper)
        kept_state = (
            torch.where(accepted, end, point),
            torch.where(accepted, velocity, 0.0),
            torch.where(accepted, new_score, score),
        )
        return (*kept_state, curvature), ()

    def _step(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[()]]:
        point, velocity = carry
        velocity = self.momentum * velocity + self.gradient(problem, point, const, picks)
        moving = has_rows(picks).to(point) if self.unit == "epochs" else 1.0
        return (point + moving * self.step_size * velocity, velocity), ()

    def gradient(self, problem: Problem, point: Tensor, const: Any, picks: Any) -> Tensor:
        """The gradient (D,) that a client's step follows; `const` is its objective, `picks` the step's minibatch."""
        return self.score(problem, point, const, picks)

    def score(self, problem: Problem, point: Tensor, objective: Objective, picks: Minibatch) -> Tensor:
        """The gradient (D,) of a client's objective on a step's minibatch."""
        batch = batch_of(objective.data, picks)

        def log_density(z: Tensor) -> Tensor:
            value: Tensor = problem.log_lik(z, batch) / objective.divisor.clamp_min(1)
            return value + problem.log_prior(z) / objective.num_rows if self.prior else value

        gradient: Tensor = grad(log_density)(point)
        return gradient

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to steps far longer than the others', relative to the point's size."""
        size = message_limits.sizes(messages["delta"]) / (1 + message_limits.sizes(received["point"]))
        return message_limits.outlying_clients(size, "step")

    def contributions(self) -> Contributions:
        """The clients' steps."""
        return StepContributions(self)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Length of the server's step."""
        return {"change": float((entries_as(Server, after).point - entries_as(Server, before).point).norm())}

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning if steps grow at the end, because the point has not converged."""
        steps = [figures["change"] for figures in record.figures if "change" in figures]
        if len(steps) < 4 * RECENT_ROUNDS:
            return []
        half = len(steps) // 2
        before, recent = (
            sum(part) / RECENT_ROUNDS for part in (steps[half - RECENT_ROUNDS : half], steps[-RECENT_ROUNDS:])
        )
        if not recent > MAX_STEP_GROWTH * before:
            return []
        return [sentences.server_steps_grow(late=recent, before=before)]

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The point, (1, 1, D)."""
        return entries_as(Server, shared).point[None, None]


def _curvature(point: Tensor, end: Tensor, change: Tensor) -> Tensor:
    """L (), from a step and the change of the gradient along it; zero if rounding hides the step."""
    length = (end - point).norm()
    curvature = change.norm() / length.clamp_min(torch.finfo(length.dtype).tiny)
    return torch.where(length >= _probing_step(point) / 2, curvature, 0.0)


def _probing_step(point: Tensor) -> Tensor:
    """The length () of a step for a difference of gradients, √eps relative to the point's size."""
    shortest: Tensor = torch.finfo(point.dtype).eps ** 0.5 * (1 + point.norm())
    return shortest
