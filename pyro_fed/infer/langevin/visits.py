"""Visits of chains to clients: the chains' starts, a step with its size and minibatch, and the T steps of a round.

    η = √h A ξ,    ξ ~ N(0, I)
    θ' = θ + h/2 A A' v(θ) + η                        (1) of el Mekkaoui et al., in coordinates A⁻¹ θ
    θ' = θ + h/2 A A' v(θ + η/2) + η                  midpoint, draws at θ + η/2
    h_t = h_0 (1 + t / b)^-γ                          after t steps of the chain, b `decay_offset`, γ `decay`

G = A A' is the preconditioner; A = I in the papers. The midpoint rule takes the score and the draw after half the noise
(Leimkuhler & Matthews, 2013, in the form of Vilmart, 2015). With exact scores the variance at a Gaussian target is then
exact for every stable h, while that of Eq. (1) is too large by a factor of 1/(1 - hλ/4).

A derived step is stable at the steepest client (`longest_steps`): h λ < 4, λ the largest eigenvalue of A'HA, H = -∇v,
by power iteration (`ops.langevin` has the derivation). Each product A'HA v costs two gradients; the power iteration
costs about forty. From the next round on all clients have the same steps, since steps that depend on the client would
change the stationary distribution.

Chains begin at draws of p(θ) Π_s q_s(θ), or of the prior. The covariance of that Gaussian is A A', and control variates
and conducive gradients are evaluated at its mode θ*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp

from pyro_fed.algorithm.capabilities import LocalRounds
from pyro_fed.algorithm.contract import Noise, Start, State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, Minibatch, batch_of, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.gradients import (
    ConduciveGradient,
    ConduciveScore,
    ControlVariateScore,
    Memory,
    MinibatchScore,
    Score,
    TrustRegion,
)
from pyro_fed.infer.surrogates.surrogates import fitted_surrogates
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.langevin import STABLE, drifted, injected, pulled
from pyro_fed.ops.matrices import power_iteration, times, times_transposed
from pyro_fed.ops.step_sizes import polynomial_step


class ClientState(NamedTuple):
    """A client's state, of several clients (C, ...); None if a sampler does not use an entry."""

    inverse_f: Tensor  # 1/f_s
    ready: Tensor  # whether the client has been visited
    anchor: Tensor  # θ*, the mode of p(θ) Π q_s(θ), (D,)
    factor: Tensor  # A of the preconditioner A A', (D, D) or its diagonal (D,)
    anchor_score: Tensor | None = None  # gradient of all its rows' log-likelihood at θ*, (D,)
    longest_step: Tensor | None = None  # the longest derived step at this client
    pull: Tensor | None = None  # α g_s(θ*), (D,)
    pull_slope: Tensor | None = None  # α (P - P_s/f_s), (D, D) or (D,)
    metric: Tensor | None = None  # the posterior's precision, the metric of the distance from θ*, (D, D) or (D,)
    trust_radius: Tensor | None = None  # the distance from which on g_s does not grow

    @property
    def conducive(self) -> ConduciveGradient | None:
        """α g_s; None without conducive gradients."""
        if self.pull is None or self.pull_slope is None:
            return None
        if self.metric is None or self.trust_radius is None:
            return ConduciveGradient(self.anchor, self.pull, self.pull_slope)
        return ConduciveGradient(self.anchor, self.pull, self.pull_slope, TrustRegion(self.metric, self.trust_radius))

    def score(self, anchor: Tensor | None = None) -> Score:
        """v_s, Eq. (4), with a control variate at `anchor`, and with α g_s, Eq. (7), if these are used."""
        unbiased: Score = MinibatchScore(self.inverse_f)
        if anchor is not None and self.anchor_score is not None:
            unbiased = ControlVariateScore(self.inverse_f, anchor, self.anchor_score)
        return unbiased if self.conducive is None else ConduciveScore(unbiased, self.conducive)

    def shortened(self, step_size: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """h of visits, bounded by the longest steps of the clients visited, of which `index` has the places."""
        return step_size if self.longest_step is None else torch.minimum(step_size, self.longest_step[index])


class Arrival(NamedTuple):
    """What a client receives for each chain that visits it, (C, ...)."""

    position: Tensor  # the chain's position, (C, D)
    client: Tensor  # the client's number, (C,)
    steps: Tensor  # number of steps of the chain so far, (C,)
    step_size: Tensor  # h of its steps, before decay and bounds, (C,)


class Visit(NamedTuple):
    """Messages of C visits: the chains' positions, and every `stride`-th of T steps; of R rounds (R, C, ...)."""

    position: Tensor  # the chain's position, (C, D)
    client: Tensor  # the client's number, (C,)
    draws: Tensor  # positions that may be kept, (C, T / stride, D)
    gradient_norm: Tensor  # norm of the preconditioned score, (C, T / stride)
    step_size: Tensor  # h, (C, T / stride)


class Beginning(NamedTuple):
    """The starts of chains."""

    position: Tensor  # of the M chains, (M, D)
    anchor: Tensor  # θ*, (D,)
    factor: Tensor  # A, (D, D) or its diagonal (D,)
    gaussians: tuple[Gaussian, Gaussian] | None = None  # the surrogates q_s, batch (K,), and p(θ) Π_s q_s(θ)


def starting_points(
    problem: Problem,
    surrogates: object,
    start: Start | None,
    num_chains: int,
    precondition: bool,
    generator: torch.Generator,
) -> Beginning:
    """Starts at draws of p(θ) Π_s q_s(θ), or of the prior without surrogates."""
    if surrogates is not None:
        return at_surrogates(problem, surrogates, start, num_chains, precondition, generator)
    zero = torch.zeros(problem.dim, dtype=problem.dtype)
    return Beginning(problem.init(num_chains, generator), zero, torch.ones_like(zero))


def at_surrogates(
    problem: Problem,
    surrogates: object,
    start: Start | None,
    num_chains: int,
    precondition: bool,
    generator: torch.Generator,
) -> Beginning:
    """Starts at draws of p(θ) Π_s q_s(θ), from `Given`, or from the final states of the algorithm that fits q_s."""
    gaussians = fitted_surrogates(problem, surrogates, start)
    target = gaussians[1]
    position = target.sample(num_chains, generator).to(problem.dtype)
    factor = target.root() if precondition else torch.ones_like(target.eta)
    return Beginning(position, target.mean().to(problem.dtype), factor.to(problem.dtype), gaussians)


def new_clients(begin: Beginning, visit_share: Tensor) -> ClientState:
    """The clients' states before their first visits; `visit_share` is f_s, (K,)."""

    def each(value: Tensor) -> Tensor:
        """The value for each client."""
        return value.expand(len(visit_share), *value.shape)

    return ClientState(
        1 / visit_share, torch.zeros(len(visit_share), dtype=torch.bool), each(begin.anchor), each(begin.factor)
    )


@lru_cache(maxsize=8)
def unused_minibatches(batch_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Empty minibatches of a client with at most m rows; `with_all_rows_where_few` fills them."""
    return {
        "position": torch.zeros(0, batch_size, dtype=torch.int64),
        "weight": torch.zeros(0, batch_size, dtype=dtype),
    }


def with_all_rows_where_few(position: Tensor, weight: Tensor, num_rows: Tensor, steps: int) -> Minibatch:
    """Minibatches (T, C, m): those that were drawn, or all rows of a client with at most m rows."""
    slot = torch.arange(position.shape[-1], device=num_rows.device)
    rows = num_rows.unsqueeze(-1)
    if not len(position):  # no client drew any
        position, weight = (part.new_zeros(steps, *part.shape[1:]) for part in (position, weight))
    takes_all, is_row = rows <= len(slot), slot < rows
    position = torch.where(takes_all, slot % rows.clamp_min(1), position)
    return Minibatch(position, torch.where(takes_all, is_row.to(weight.dtype), weight))


#: Minibatches (T, m) from: the number of rows, m, T, a generator, and the dtype of weights.
PickRows = Callable[[int, int, int, torch.Generator, torch.dtype], Minibatch]


@dataclass(frozen=True)
class VisitNoise:
    """The randomness of visits: ξ, and the minibatches of clients with more than m rows."""

    local_steps: int  # T
    batch_size: int | None  # m; None takes all rows
    pick_rows: PickRows  # the minibatches of a visit to a client with more than m rows

    def draw(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal noise (T, D) and the minibatches of a visit."""
        normal = torch.randn(self.local_steps, problem.dim, generator=generator, dtype=problem.dtype)
        if self.batch_size is None:
            return {"normal": normal}
        if num_rows <= self.batch_size:
            return {"normal": normal, **unused_minibatches(self.batch_size, problem.dtype)}
        picks = self.pick_rows(num_rows, self.batch_size, self.local_steps, generator, problem.dtype)
        return {"normal": normal, "position": picks.position, "weight": picks.weight}

    def noise_of_visits(
        self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]
    ) -> Noise | None:
        """The noise of V visits in one tensor, (T, V, D); None if a client does not take all of its rows."""
        size = self.batch_size
        if size is not None and int(num_rows.max()) > size:
            return None
        normal = torch.empty(len(num_rows), self.local_steps, problem.dim, dtype=problem.dtype)
        for visit, generator in zip(normal, generators, strict=True):
            visit.normal_(generator=generator)
        no_rows = {} if size is None else unused_minibatches(size, problem.dtype)
        picks = {name: value.new_empty(0, len(num_rows), value.shape[-1]) for name, value in no_rows.items()}
        return {"normal": normal.transpose(0, 1), **picks}


class LangevinState(NamedTuple):
    """A chain between two steps: its position θ, (D,), and the memory of the score's estimate."""

    position: Tensor
    memory: Memory = ()


class Client(NamedTuple):
    """Constants of the steps of a visit."""

    score: Score  # estimates v
    factor: Tensor  # A, (D, D) or its diagonal (D,)
    rows: Batch | ClientData  # all rows of the client, or those from which minibatches are taken


class StepInput(NamedTuple):
    """Inputs of one step."""

    normal: Tensor  # ξ, (D,)
    step_size: Tensor  # h
    picks: Any = ()  # the minibatch; () if all rows are taken


class Trace(NamedTuple):
    """Output of a step: the draw (D,), and the norm |A' v| of the preconditioned score."""

    draw: Tensor
    norm: Tensor


@dataclass(frozen=True)
class Integrator:
    """A step of Eq. (1), or of the midpoint rule."""

    midpoint: bool

    def step(self, problem: Problem, state: LangevinState, client: Client, x: StepInput) -> tuple[LangevinState, Trace]:
        """The chain after a step, and the step's output."""
        noise = injected(x.step_size, x.normal, client.factor)
        evaluated_at = state.position + 0.5 * noise if self.midpoint else state.position
        batch = batch_of(client.rows, x.picks)
        score, memory = client.score.estimate(problem, evaluated_at, batch, x.picks, state.memory)
        pull = pulled(score, client.factor)
        after = drifted(state.position, pull, x.step_size, noise, client.factor)
        return LangevinState(after, memory), Trace(evaluated_at if self.midpoint else after, pull.norm())


#: A share of the full step above this is one, up to rounding in any dtype: a client that needs a shorter step has at
#: most `STABLE_STEP_SHARE` of it.
SAME_STEP_SHARE = 1 - torch.finfo(torch.float32).eps ** 0.5


@dataclass(frozen=True)
class StepSizes:
    """The steps of a visit."""

    local_steps: int  # T
    thin: int  # one step in this many is kept
    decay: float  # γ; 0 keeps the step constant
    decay_offset: float  # b

    @property
    def stride(self) -> int:
        """Steps between positions that are sent, enough for `thin`."""
        return math.gcd(self.thin, self.local_steps)

    def of_visit(self, done: Tensor, step_size: Tensor) -> Tensor:
        """h of each step of a visit, (T, ...), from h_0 (...) and the number of earlier steps, of that shape or ()."""
        if not self.decay:
            return step_size.expand(self.local_steps, *step_size.shape)
        steps = done + torch.arange(self.local_steps, device=done.device).reshape(-1, *[1] * done.dim())
        scale = step_size * self.decay_offset**self.decay
        decay = polynomial_step(steps.to(scale.dtype), 1.0, self.decay_offset, self.decay)
        sizes: Tensor = scale * decay
        return sizes

    def smallest_step_ratio(self, done: Tensor, step_size: Tensor, used: Tensor) -> float:
        """The smallest ratio of steps `used` in R rounds (R, C, T / stride) to full ones, or 1 up to rounding."""
        each = done + self.local_steps * torch.arange(len(used))
        full_steps = self.of_visit(each, step_size.expand(len(used)))[self.stride - 1 :: self.stride]
        ratio = float((used / full_steps.T.unsqueeze(1)).amin())
        return ratio if 0 < ratio < SAME_STEP_SHARE else 1.0


#: An unstable derived step is replaced by this share of the largest stable one.
STABLE_STEP_SHARE = 0.25


def longest_step_or_error(
    name: str, problem: Problem, arrival: Arrival, client: ClientState, score: Score, batch: Batch
) -> State:
    """Each client's longest step, by its curvature at a chain's position; SettingError if a fixed one is longer."""
    curvature = largest_curvature(problem, arrival.position, score, client.factor, batch)
    if client.longest_step is not None:
        return {"longest_step": longest_steps(arrival.step_size, curvature).to(client.longest_step.dtype)}
    check_step(name, arrival.step_size, curvature, arrival.client)
    return {}


def largest_curvature(problem: Problem, position: Tensor, score: Score, factor: Tensor, batch: Batch) -> Tensor:
    """λ (C,) of each client's score at its chain's position (C, D); negative if the dominant curvature is outward."""
    product = problem.mapped(_curve, (0, 0, 0, 0, BATCHES), calls=0)
    return power_iteration(lambda v: product(position, v, score, factor, batch), position)


def _curve(problem: Problem, z: Tensor, direction: Tensor, score: Score, factor: Tensor, batch: Batch) -> Tensor:
    """A'HA v of one client."""

    def estimate(z: Tensor) -> Tensor:
        return score.estimate(problem, z, batch)[0]

    along = times(factor, direction)
    # The Jacobian of a score is symmetric, so that v'J is (J v)'.
    curve = jvp(estimate, (z,), (along,))[1] if problem.forward_mode else vjp(estimate, z)[1](along)[0]
    return -times_transposed(factor, curve)


def longest_steps(step_size: Tensor, curvature: Tensor) -> Tensor:
    """Longest derived steps (C,), from λ (C,), where a step h (C,) would be unstable; infinite elsewhere."""
    beyond = step_size * curvature >= STABLE
    return torch.where(beyond, STABLE_STEP_SHARE * STABLE / curvature, torch.inf)


def check_step(name: str, step_size: Tensor, curvature: Tensor, clients: Tensor) -> None:
    """Refuse steps h (C,) that are unstable at curvature λ (C,), before they are taken."""
    product = step_size * curvature
    worst = int(torch.where(torch.isfinite(product), product, -torch.inf).argmax())
    if bool(product[worst] >= STABLE):
        limit = STABLE / float(curvature[worst])
        raise SettingError(
            f"{name}, client {int(clients[worst])}: step_size {float(step_size[worst]):.3g} times the largest "
            f"curvature {float(curvature[worst]):.3g} is {float(product[worst]):.3g}, and from {STABLE:g} on Langevin "
            f"steps diverge; the visit was not made. The largest stable step is {limit:.3g}; a tenth of it is accurate"
        )


@dataclass(frozen=True)
class Visits:
    """The steps of chains at clients."""

    integrator: Integrator  # a step
    step_sizes: StepSizes  # T and h
    batch_size: int | None  # m; None takes all rows

    def one_round(
        self,
        problem: Problem,
        arrival: Arrival,
        client: ClientState,
        score: Score,
        data: ClientData,
        noise: Noise,
        memory: Memory = (),
    ) -> tuple[LangevinState, Visit, State]:
        """Take T steps of C chains at C clients: the chains' ends, the messages, and diagnostics."""
        steps = self.step_sizes.of_visit(arrival.steps, client.shortened(arrival.step_size))
        rows, axes = with_batches(data, self.batch_size)
        end, trace = problem.scan(
            self.integrator.step,
            LangevinState(arrival.position, memory),
            Client(score, client.factor, rows),
            StepInput(noise["normal"], steps, self._picks(noise, data.num_rows)),
            len(steps),
            Client._make((0, 0, axes)),
        )
        sent = trace._replace(draw=trace.draw[self.step_sizes.stride - 1 :: self.step_sizes.stride])
        return end, self._messages(arrival.client, end.position, sent, steps), {"gradient_norm": trace.norm.mean(0)}

    def several_rounds(
        self,
        problem: Problem,
        arrival: Arrival,
        client: ClientState,
        score: Score,
        data: ClientData,
        noise: Noise,
        clients: Tensor,
        index: Tensor,
    ) -> LocalRounds:
        """Take the steps of C chains in R rounds at clients (R, C), of which `index` has the places among K."""
        rounds, length = len(index), self.step_sizes.local_steps

        def in_turn(value: Tensor) -> Tensor:
            """(T, R C, ...) as (R T, C, ...)."""
            by_round: Tensor = value.unflatten(1, index.shape).transpose(0, 1)
            return by_round.flatten(0, 1)

        done = arrival.steps + length * torch.arange(rounds, device=index.device).unsqueeze(1)
        step_size = arrival.step_size.expand(index.shape)
        steps = self.step_sizes.of_visit(done, client.shortened(step_size, index))
        rows, axes = with_batches(data, self.batch_size)
        picks = self._picks(noise, data.num_rows[index.flatten()])
        ends, trace = problem.scans(
            self.integrator.step,
            LangevinState(arrival.position),
            Client(score, client.factor, rows),
            StepInput(in_turn(noise["normal"]), in_turn(steps.flatten(1)), picks and Minibatch(*map(in_turn, picks))),
            index,
            Client._make((0, 0, axes)),
            (self.step_sizes.stride, 1),
        )
        starts = torch.cat([arrival.position.unsqueeze(0), ends.position[:-1]])
        trace = Trace(*(value.unflatten(0, (rounds, -1)).transpose(0, 1) for value in trace))
        received = Arrival(starts, clients, done, step_size)._asdict()
        visits = self._messages(clients, ends.position, trace, steps)
        return LocalRounds(received, visits._asdict(), {"gradient_norm": trace.norm.mean(0)})

    def _picks(self, noise: Noise, num_rows: Tensor) -> Any:
        """The minibatches of visits, (T, C, m), from `num_rows` (C,) of their clients; () if all rows are taken."""
        if self.batch_size is None:
            return ()
        return with_all_rows_where_few(noise["position"], noise["weight"], num_rows, self.step_sizes.local_steps)

    def _messages(self, client: Tensor, position: Tensor, trace: Trace, steps: Tensor) -> Visit:
        """The messages, from the chains' ends, every `stride`-th draw, and the norms and h of all steps."""
        each = slice(self.step_sizes.stride - 1, None, self.step_sizes.stride)
        norms, steps = (value[each].movedim(0, -1) for value in (trace.norm, steps))
        return Visit(position, client, trace.draw.movedim(0, -2), norms, steps)
