"""Federated averaging, with adaptive server optimisers.

Source: McMahan et al. (2017); Reddi et al. (2020), Algorithm 2; the baseline of Guo et al.

    θ_k ← θ after L local steps of SGD on -log p_k / N_k,    θ ← θ + δ optim(Σ_k (N_k / N) (θ_k - θ))

Deviations: `prior` adds the client's share N_k / N of the log prior to its objective (MAP); the papers have none. Where
a step takes all rows its size is held to the curvature that the client's own gradients show, see `averaging.descent`.
Letters: θ `point`, θ_k - θ `delta`, N_k `divisor`, N `num_rows`, δ `damping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.bounding import relative_rows, within_cohort
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.record import RECENT_ROUNDS, Record
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant, chosen_setting, explains_unknown, refuse_unused, resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import (
    Batch,
    ClientData,
    Minibatch,
    at_work,
    batch_of,
    draw_epochs,
    draw_minibatches,
    with_batches,
)
from pyro_fed.errors import SettingError
from pyro_fed.infer.averaging.descent import descent_ends
from pyro_fed.infer.averaging.optim import OPTIM, Adam, Optimiser
from pyro_fed.infer.sites.records import entries_as


@dataclass(frozen=True)
class StepContributions(Contributions):
    """Contributions to `FedAvg` and its kin, whose clients send their steps as `delta`."""

    obstacle: str = ""

    def bounding_obstacle(self) -> str | None:
        """The reason why the steps cannot be bounded, and the cure; "" if they can be."""
        return self.obstacle

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Clip every number of a step to the cohort's range."""
        rows = sent.own_rows
        share = None if rows is None else relative_rows(rows.double())
        found, cut = within_cohort(sent.messages["delta"], limits.pull, share)
        return BoundedMessages(shared, {**sent.messages, "delta": found}, {}, cut)


#: Largest ratio of the mean length of the last steps to that of the middle ones: steps of minibatches keep their
#: length, and steps towards a point get shorter.
GROWN = 2.0


class Server(NamedTuple):
    """The server's state but for its optimiser's, which clients receive: θ (D,) or (C, D), and N, () or (C,)."""

    point: Tensor
    num_rows: Tensor


class Objective(NamedTuple):
    """What a client's log density a row, log p_k / N_k + log p_0 / N, is computed from; leading axes are clients."""

    divisor: Tensor  # of the log-likelihood, N_k
    num_rows: Tensor  # N
    data: Batch | ClientData  # the client's rows, or those of a step


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Algorithm):
    """Base of algorithms whose clients make steps of SGD from the server's point."""

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
                f"{type(self).__name__}: unit='epochs' needs the batch_size of the minibatches that make an epoch"
            )

    def default_rounds(self, num_clients: int) -> int:
        """A hundred rounds, whatever the number of clients."""
        return 100

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start near the prior's mean, further off if gradients vanish there, or at zeros if a flat prior has none."""
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

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make L steps of SGD."""
        server = entries_as(Server, shared)
        point = self.descended(problem, server.point, *self.objective(server, data, data.num_rows), noise)
        return {"delta": point - server.point}, {}, {}

    def objective(self, server: Server, data: ClientData, divisor: Tensor) -> tuple[Objective, Objective]:
        """The objectives of C clients, whose log-likelihoods `divisor` (C,) divides, and their client axes."""
        rows, axes = with_batches(data, self.batch_size)
        return Objective(divisor, server.num_rows, rows), Objective._make((0, 0, axes))

    def descended(self, problem: Problem, point: Tensor, const: Any, dims: Any, noise: Noise) -> Tensor:
        """The points (C, D) where C clients' L steps from `point` (C, D) end; `dims` are the client axes of `const`."""
        if self.batch_size is None:
            return descent_ends(problem, self, point, const, dims)
        count = len(noise.weight) if self.unit == "epochs" else self.chain_steps
        end: Tensor
        (end, _), _ = problem.scan(self._step, (point, torch.zeros_like(point)), const, noise, count, dims)
        return end

    def _step(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[()]]:
        point, velocity = carry
        velocity = self.momentum * velocity + self.gradient(problem, point, const, picks)
        moving = at_work(picks).to(point) if self.unit == "epochs" else 1.0
        return (point + moving * self.step_size * velocity, velocity), ()

    def gradient(self, problem: Problem, point: Tensor, const: Any, picks: Any) -> Tensor:
        """The gradient (D,) that a client's step follows; `const` is its objective, `picks` the step's minibatch."""
        return self.score(problem, point, const, picks)

    def score(self, problem: Problem, point: Tensor, objective: Objective, picks: Minibatch) -> Tensor:
        """The gradient (D,) of a client's objective by a step's minibatch."""
        batch = batch_of(objective.data, picks)

        def log_density(z: Tensor) -> Tensor:
            value: Tensor = problem.log_lik(z, batch) / objective.divisor.clamp_min(1)
            return value + problem.log_prior(z) / objective.num_rows if self.prior else value

        found: Tensor = grad(log_density)(point)
        return found

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to steps far above the others', in units of the point."""
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
        before, late = (
            sum(part) / RECENT_ROUNDS for part in (steps[half - RECENT_ROUNDS : half], steps[-RECENT_ROUNDS:])
        )
        if not late > GROWN * before:
            return []
        return [sentences.server_steps_grow(late=late, before=before)]

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The point, (1, 1, D)."""
        return entries_as(Server, shared).point[None, None]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSGD):
    """Federated averaging: averages of the clients' SGD iterates, a point and no posterior.

    Args:
        chain_steps: L, SGD steps a round, or epochs, see `unit`.
        step_size: of SGD, on the log-likelihood a row; if a step takes all rows, at most what the curvature allows.
        momentum: of SGD.
        batch_size: rows a step; None takes all.
        unit: the unit of `chain_steps`: "steps", or "epochs", in each of which a client takes every row once, in
            minibatches of `batch_size`: clients of any size then do equal work.
        prior: add the client's share of the log prior.
        damping: δ, the server's learning rate.
        server_optimiser: of the averaged step: a `pf.infer.optim` optimiser, or its name for the defaults: "sgd",
            "adagrad", or "adam", whose `betas` are (0.9, 0.99) here. None is plain averaging.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        McMahan et al. (2017); Reddi et al. (2020).

    Example:
        >>> idata = pf.run(pf.FedAvg(chain_steps=50), fed)
        >>> idata = pf.run(pf.FedAvg(server_optimiser=pf.infer.optim.SGD(momentum=0.9), damping=0.5), fed)
    """

    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {
        "server_optimiser": {"adam": Adam(betas=(0.9, 0.99))}  # Reddi et al., Section 5
    }

    damping: float = 1.0
    server_optimiser: Optimiser | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "damping")
        resolve(self, "server_optimiser", Optimiser, allow_none=True)

    @property
    def optimiser(self) -> Optimiser | None:
        """The setting `server_optimiser` as an instance."""
        return cast("Optimiser | None", self.server_optimiser)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start at a point, with the state of the server's optimiser."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.optimiser is None:
            return shared, local
        point = entries_as(Server, shared).point
        return shared | prefixed(OPTIM, self.optimiser.init({"point": point}, self.damping)), local

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average the steps by rows, and pass the average through the optimiser."""
        point = entries_as(Server, shared).point
        delta = (weights.unsqueeze(-1) * messages["delta"]).sum(0)
        if self.optimiser is None:
            return {**shared, "point": point + self.damping * delta}
        step, memory = self.optimiser.step({"point": point}, {"point": delta}, within(shared, OPTIM), self.damping)
        return {**shared, "point": point + step["point"], **prefixed(OPTIM, memory)}


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class BurnIn(FedAvg):
    """`FedAvg` on minibatches by Adam, for the rounds with which another algorithm begins.

    Adam's steps are as long whatever the scale of the gradients, which in a wide network is that of its width: no step
    size of SGD is right for all. They are as long beside a random start, too, where gradients are all noise: a first
    round at the full rate would take ReLU units out of the reach of all rows. So the rate rises over the first rounds.
    """

    rounds: int | None = None  # 40 if None, and 100 of a network of at most 1000 parameters that does not classify
    step_size: float = 0.03  # Adam's rate, from round `rising` on
    rising: int = 3  # rounds over which the rate rises to it, linearly; 1 has it from the start
    second_moment: float = 0.99  # Adam's β_2; `momentum` is β_1
    eps: float = 1e-8
    batch_size: int | None = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "rounds", allow_none=True)
        check_at_least(self, 1, "rising")
        check_between(self, "second_moment", 0, 1, "[)")
        check_positive(self, "eps")
        refuse_unused(self, "its steps are counted", "unit")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The state of `FedAvg`, with the number of rounds so far."""
        shared, local = super().init(problem, num_clients, generator, start)
        return {**shared, "rounds_before": torch.tensor(0)}, local

    def download(self, shared: State, clients: Tensor) -> State:
        """The server's point, and the number of rounds so far."""
        return {**super().download(shared, clients), "rounds_before": shared["rounds_before"].expand(len(clients))}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make L steps of Adam, which starts afresh in every round."""
        server = entries_as(Server, shared)
        objective, axes = self.objective(server, data, data.num_rows)
        zero = torch.zeros_like(server.point)
        rate = self.step_size * ((shared["rounds_before"] + 1).to(zero) / self.rising).clamp_max(1)
        carry, const = (server.point, zero, zero, zero[:, 0]), (objective, rate)
        (point, *_), _ = problem.scan(self._adam, carry, const, noise, self.chain_steps, (axes, 0))
        return {"delta": point - server.point}, {}, {}

    def _adam(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[()]]:
        point, first, second, count = carry
        objective, rate = const
        score, count = self.score(problem, point, objective, picks), count + 1
        first = self.momentum * first + (1 - self.momentum) * score
        second = self.second_moment * second + (1 - self.second_moment) * score.square()
        mean, square = first / (1 - self.momentum**count), second / (1 - self.second_moment**count)
        return (point + rate * mean / (square.sqrt() + self.eps), first, second, count), ()

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average as `FedAvg`, and count the round."""
        after = super().combine(shared, messages, weights)
        return {**after, "rounds_before": shared["rounds_before"] + 1}

    def default_rounds(self, num_clients: int) -> int:
        """The setting `rounds`."""
        rounds: int = chosen_setting(self, "rounds")
        return rounds
