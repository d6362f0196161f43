"""A round that measures the clients' surrogates, before a run whose visits depend on the measurement.

With C the covariance of the Gaussian q = p Π_s q_s, (C e)_i / √C_ii is the pull of a score e at parameter i, in its
SDs. Each client sends means over standardised Sobol points under q, a few times D numbers; the server adds them up.

**Mismatch** bounds FSGLD's visits (`ops.langevin`) by the mean squares of the pulls of

    e_s(θ) = 1/f_s [∇ log p(x_s | θ) - α ∇ log q_s(θ)] - (1 - α) Σ_r ∇ log q_r(θ)

the part of a chain's score that is specific to client s; the f-weighted mean over clients is that of the posterior. The
mean squares are not centred, so they include the clients' common error, which does no harm. They are an upper bound,
which is close with more than a few clients. The record has the largest of each client. The longest step depends on the
largest curvature λ_s of a chain's score at a client, in coordinates in which q is N(0, I), A A' = C. It is computed by
power iteration, at a few of the points, of

    I - 1/f_s A' [∇² log p(x_s | θ) + α P_s] A          prior and α ≠ 1 are left out of the brackets

**OwnNoise** bounds FALD's visits by the bias of their average. Clients that step in parallel from one point have
independent noise with 1/p_c times the variance of the average's. In a visit of time t, client c is at
θ + √(u/p_c) C^½ ξ after the time u, and the average at θ + √u C^½ ξ. The averages of nonlinear scores differ by

    δ(θ) = Σ_c p_c E[score_c(θ + √(u/p_c) C^½ ξ) - score_c(θ + √u C^½ ξ)]
         = u Σ_c p_c (1/p_c - 1) D_c(θ) + O(u²),        D_c = ½ (C : ∇²) score_c

The chain dθ = (-(θ - m) + C δ(θ))/2 dt + C^½ dW about q has a shift of parameter i, in SDs, and a relative increase of
its variance, of

    E[(C δ)_i] / √C_ii        and        E[(C δ)_i (θ - m)_i] / C_ii

to first order in δ; over a visit, the mean of u is `noise_time` t. Scores that grow steeply pull their clients back, so
that these values are usually upper bounds. E over ξ is a mean over random signs, D_c a second difference. Conducive
gradients are linear, and do not contribute; the prior is part of every client's score.

Letters: f_s and p_c `visit_share`, e_s `errors`, λ `curvature`, A `root`, P_s `precision`; over u, the shift is
`shift`, the increase `widening`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import within_cohort
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.conventions import seeding
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.derivatives import clients_likelihood_curves, clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, moments_of, shifts_by, spread_points
from pyro_fed.infer.surrogates.surrogates import Given, fitted_surrogates, require_one_per_client, visit_shares
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import power_iteration, times
from pyro_fed.ops.memory import fits_in_memory


@dataclass(frozen=True)
class MeasuredContributions(Contributions):
    """Contributions to `Measuring`: each client's measurement of its surrogate."""

    def bounding_obstacle(self) -> str | None:
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Measurements within the cohort's range."""
        held = {name: within_cohort(value, limits.pull)[0] for name, value in sent.messages.items()}
        return BoundedMessages(shared, held, {}, torch.zeros(len(sent.clients), dtype=torch.float64))

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """The cohort's median."""
        return {name: value.quantile(0.5, 0).expand(len(clients), *value.shape[1:]) for name, value in messages.items()}


@dataclass(frozen=True, kw_only=True)
class Measuring(Algorithm):
    """One round of all clients at points under q = p Π_s q_s; it does not change the surrogates."""

    needs_all: ClassVar[bool] = True

    surrogates: Algorithm | Given  # where they come from, an algorithm that leaves Gaussian sites, or `Given`
    probabilities: tuple[float, ...] | None = None  # f_s; uniform by default
    num_points: int = 128  # Sobol points; even

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_points")

    @abstractmethod
    def initial_entries(self, q: Gaussian) -> State:
        """The entries of the server's state before the measurement."""

    @abstractmethod
    def measure_clients(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> LocalResult:
        """Measure the clients' surrogates at `num_points` points; other arguments and results as of `local_step`."""

    def default_rounds(self, num_clients: int) -> int:
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
        return self.surrogates if isinstance(self.surrogates, Algorithm) else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from q, with each client's surrogate."""
        sites, target = fitted_surrogates(problem, self.surrogates, start)
        visit_share = visit_shares(self.probabilities, num_clients)
        local = as_state(require_one_per_client(sites, num_clients)) | {"visit_share": visit_share}
        return as_state(target) | self.initial_entries(target), local

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({name: shared[name] for name in ("precision", "eta")}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Measure each client's surrogate, client by client if the points need much memory."""
        count = problem.traits.affordable_points(data.row_index.numel(), self.num_points)
        clients = len(shared["eta"])
        if clients == 1 or fits_in_memory(shared["eta"].numel() * count):
            return self.measure_clients(problem, shared, local, data, count)
        each = [slice(client, client + 1) for client in range(clients)]
        results = [self.measure_clients(problem, select(shared, i), select(local, i), data.of(i), count) for i in each]
        messages, new, figures = (concatenate(parts) for parts in zip(*results, strict=True))
        return messages, new, figures

    def contributions(self) -> Contributions:
        return MeasuredContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return shared | {name: value.sum(0) for name, value in messages.items()}

    def advice(self, problem: Problem, before: State) -> str:
        return "the surrogates do not fit: use others (surrogates=), or set step_size, which needs no measurement"

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return gaussian(shared).even_sample(num_draws, generator)[None]


@dataclass(frozen=True, kw_only=True)
class Mismatch(Measuring):
    """The round that measures the surrogates' errors."""

    alpha: float = 1.0  # weight of the conducive gradient
    curved_points: int = 4  # of the points, evenly spaced, at which the curvature is measured

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "curved_points")

    def initial_entries(self, q: Gaussian) -> State:
        """Errors of zero, and the curvature of q."""
        return {"mismatch": torch.zeros_like(q.eta), "curvature": q.eta.new_ones(())}

    def measure_clients(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> LocalResult:
        """f_s times the mean squares of the pulls, (C, D), and the largest curvature, (C,)."""
        q, sites, visit_share = gaussian(shared), gaussian(local), local["visit_share"].reshape(-1, 1)
        points = spread_points(q, num_points)
        at = points.transpose(0, 1).to(problem.dtype)
        scores = clients_likelihood_scores(problem, at, data)
        errors = (scores.double().transpose(0, 1) - self.alpha * sites.score(points)) / visit_share
        if self.alpha != 1:
            prior = problem.mapped(prior_scores, (0,), calls=0)(at).double().transpose(0, 1)
            errors = errors - (1 - self.alpha) * (q.score(points) - prior)
        squares = shifts_by(errors, q).square().mean(0)
        curved = at[:, evenly(at.shape[1], self.curved_points)]
        curvature = self._curvature(problem, q, sites, visit_share, curved, data)
        measured = {"mismatch": squares.amax(-1), "curvature": curvature}
        return {"mismatch": visit_share * squares, "curvature": curvature}, {}, measured

    def _curvature(
        self, problem: Problem, q: Gaussian, sites: Gaussian, visit_share: Tensor, points: Tensor, data: ClientData
    ) -> Tensor:
        """λ_s, (C,), the largest at the points (C, S, D)."""
        root = q.root()[:, None]
        precision = sites.precision[:, None]

        def whitened(directions: Tensor) -> Tensor:
            moved = times(root, directions)
            curves = clients_likelihood_curves(problem, points, moved.to(points.dtype), data).double()
            own = (-curves - self.alpha * times(precision, moved)) / visit_share[:, None]
            return directions + times(root.mT if q.dense else root, own)

        return power_iteration(whitened, points.double()).abs().amax(-1)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        squares, curvature = (messages[name].clamp_min(0) for name in ("mismatch", "curvature"))  # also if bounded
        return shared | {"mismatch": squares.sum(0), "curvature": curvature.amax(0)}


#: Step of the second difference of scores, in SDs of q: small enough for curvature, and large enough for the rounding
#: of scores in single precision, of a few hundred SDs each, to be below a hundredth of it.
SCORE_STEP_SDS = 0.3


@dataclass(frozen=True, kw_only=True)
class OwnNoise(Measuring):
    """The round that measures the bias by the clients' own noise."""

    def initial_entries(self, q: Gaussian) -> State:
        """Shifts and widenings of zero."""
        return {"shift": torch.zeros_like(q.eta), "widening": torch.zeros_like(q.eta)}

    def measure_clients(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> LocalResult:
        """The clients' parts of shift and widening, (C, D) each."""
        q, visit_share = gaussian(shared), local["visit_share"].reshape(-1, 1)
        points = spread_points(q, num_points)
        generator = torch.Generator().manual_seed(seeding.COMMON)
        signs = (2 * torch.randint(2, points.shape[::2], generator=generator) - 1).to(points)
        mean, sd = moments_of(q)
        moved = SCORE_STEP_SDS * (q.transform(signs.unsqueeze(1).expand_as(points)) - mean)
        three = torch.stack([points - moved, points, points + moved]).flatten(0, 1).transpose(0, 1).to(problem.dtype)
        likelihoods = clients_likelihood_scores(problem, three, data).double().transpose(0, 1)
        prior = problem.mapped(prior_scores, (0,), calls=0)(three).double().transpose(0, 1)
        below, here, above = (prior + likelihoods / visit_share).unflatten(0, (3, -1)).unbind()
        bend = shifts_by((below - 2 * here + above) / (2 * SCORE_STEP_SDS**2), q)
        away = (points - mean) / sd
        weight = 1 - visit_share  # p_c (1/p_c - 1)
        message = {"shift": weight * bend.mean(0), "widening": weight * (bend * away).mean(0)}
        return message, {}, {name: value.abs().amax(-1) for name, value in message.items()}


def noise_time(local_steps: int, midpoint: bool) -> float:
    """The mean time of noise before a visit's scores, as a share of the visit."""
    return ((local_steps - 1) / 2 + 0.25 * midpoint) / local_steps


def longest_parallel_visit(error: float, shared: State, local_steps: int, midpoint: bool, limit: float) -> float:
    """The longest visit t, up to `limit`, whose shifts in SDs and increases of variances are within `error`."""
    largest_bias = max(float(shared[name].abs().amax()) for name in ("shift", "widening"))
    rate = largest_bias * noise_time(local_steps, midpoint)
    return limit if rate * limit <= error else error / rate
