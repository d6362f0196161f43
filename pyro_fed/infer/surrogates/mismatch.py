"""How far the clients' surrogates are from their likelihoods, in one round: what bounds FSGLD's visits.

    e_s(θ) = 1/f_s [∇ log p(x_s | θ) - α ∇ log q_s(θ)] - (1 - α) Σ_r ∇ log q_r(θ)

is what a chain's score at client s has of its own: the f-weighted mean over clients is that of the posterior. With C
the covariance of the Gaussian q = p Π_s q_s, (C e_s)_i / sqrt(C_ii) pulls at parameter i, in its SDs. Each client
sends their mean squares over standardised Sobol points under q, D numbers; the server keeps Σ_s f_s of them, which
`ops.visits` turns into the longest visit. The squares are about zero, and so count what all clients' errors have in
common, which does no harm: an upper bound, close for more than a few clients. The record has each client's worst.

How long a step may be is decided by the largest curvature λ_s of a chain's score at a client, in coordinates in which
q is N(0, I), A A' = C: of

    I - 1/f_s A' [∇² log p(x_s | θ) + α P_s] A

at a few of the points (prior and α ≠ 1 are left out of the brackets), by power iteration; the server keeps the largest.

Letters: f_s `share`, e_s `errors`, Σ f_s E (C e_s)_i² / C_ii `mismatch`, λ `curvature`, A `root`, P_s `precision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import within_cohort
from pyro_fed.algorithm.capabilities import Advice, Bounding, Held, Sent
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.scores import clients_likelihood_curves, clients_likelihood_scores, prior_scores
from pyro_fed.density.size import affordable_points
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, spread_points
from pyro_fed.infer.sites.power_iteration import power_iteration
from pyro_fed.infer.surrogates.surrogates import Given, fitted, one_each, shares
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times

#: Numbers at all clients' points above which clients are measured one by one: 8 MB in double precision, many times.
AT_ONCE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Mismatch(Algorithm, Bounding, Advice):
    """One round that measures the surrogates; it leaves them as they were.

    Args:
        surrogates: where they come from, an algorithm that leaves Gaussian sites, or `Given`.
        alpha: weight of the conducive gradient.
        probabilities: f_s; uniform by default.
        num_points: Sobol points; even.
        curved_points: of those, evenly spaced, at which the curvature is measured.
    """

    needs_all: ClassVar[bool] = True

    surrogates: Algorithm | Given
    alpha: float = 1.0
    probabilities: tuple[float, ...] | None = None
    num_points: int = 128
    curved_points: int = 4

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_points")
        check_at_least(self, 1, "curved_points")

    def default_rounds(self, num_clients: int) -> int:
        """One round, with all clients."""
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What fits the surrogates."""
        return self.surrogates if isinstance(self.surrogates, Algorithm) else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """q, and each client's surrogate."""
        sites, target = fitted(problem, self.surrogates, start)
        share = shares(self.probabilities, num_clients)
        local = as_state(one_each(sites, num_clients)) | {"share": share}
        unknown = {"mismatch": torch.zeros_like(target.eta), "curvature": target.eta.new_ones(())}
        return as_state(target) | unknown, local

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q, under which the clients measure their errors."""
        return super().download({name: shared[name] for name in ("precision", "eta")}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """f_s times the mean squares of the pulls, (C, D), and the largest curvature, (C,).

        Client by client where the numbers at all points are many.
        """
        count = affordable_points(problem, data.row_index.numel(), self.num_points)
        clients = len(shared["eta"])
        if clients == 1 or shared["eta"].numel() * max(count, self.curved_points) <= AT_ONCE:
            return self._measured(problem, shared, local, data, count)
        each = [slice(client, client + 1) for client in range(clients)]
        found = [self._measured(problem, select(shared, i), select(local, i), data.of(i), count) for i in each]
        messages, new, figures = (concatenate(parts) for parts in zip(*found, strict=True))
        return messages, new, figures

    def _measured(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> tuple[State, State, State]:
        q, sites, share = gaussian(shared), gaussian(local), local["share"].reshape(-1, 1)
        points = spread_points(q, num_points)
        at = points.transpose(0, 1).to(problem.dtype)
        scores = clients_likelihood_scores(problem, at, data)
        errors = (scores.double().transpose(0, 1) - self.alpha * sites.score(points)) / share
        if self.alpha != 1:
            prior = problem.mapped(prior_scores, (0,), calls=0)(at).double().transpose(0, 1)
            errors = errors - (1 - self.alpha) * (q.score(points) - prior)
        squares = _pulls(q, errors).square().mean(0)
        curved = at[:, evenly(at.shape[1], self.curved_points)]
        curvature = self._curvature(problem, q, sites, share, curved, data)
        measured = {"mismatch": squares.amax(-1), "curvature": curvature}
        return {"mismatch": share * squares, "curvature": curvature}, {}, measured

    def _curvature(
        self, problem: Problem, q: Gaussian, sites: Gaussian, share: Tensor, points: Tensor, data: ClientData
    ) -> Tensor:
        """λ_s, (C,), the largest at the points (C, S, D)."""
        root = q.root()[:, None]
        precision = sites.precision[:, None]

        def whitened(directions: Tensor) -> Tensor:
            moved = times(root, directions)
            curves = clients_likelihood_curves(problem, points, moved.to(points.dtype), data).double()
            own = (-curves - self.alpha * times(precision, moved)) / share[:, None]
            return directions + times(root.mT if q.dense else root, own)

        return power_iteration(whitened, points.double()).abs().amax(-1)

    def hold(self, limits: Bounded, shared: State, kept: State, sent: Sent) -> Held:
        """Squares and curvatures within the cohort's range."""
        held = {name: within_cohort(value, limits.pull)[0].clamp_min(0) for name, value in sent.messages.items()}
        return Held(shared, held, {}, held["curvature"].new_zeros(len(held["curvature"])))

    def silent(self, shared: State, kept: State, messages: State, clients: Tensor) -> State | None:
        """What the median client measures."""
        return {name: value.quantile(0.5, 0).expand(len(clients), *value.shape[1:]) for name, value in messages.items()}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The sum of the squares, and the largest curvature."""
        return shared | {"mismatch": messages["mismatch"].sum(0), "curvature": messages["curvature"].amax(0)}

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of errors that are no numbers: other surrogates, or no measuring."""
        return "the surrogates do not fit: give others (surrogates=), or a step_size, which need not measure them"

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of q, (1, num_draws, D)."""
        return gaussian(shared).even_sample(num_draws, generator)[None]


def _pulls(q: Gaussian, errors: Tensor) -> Tensor:
    """(C e)_i / sqrt(C_ii) of errors (S, C, D)."""
    spread = q.moments()[1]
    if spread.dim() == q.eta.dim():
        return spread.sqrt() * errors
    moved = (spread @ errors.unsqueeze(-1)).squeeze(-1)
    return moved / spread.diagonal(dim1=-2, dim2=-1).sqrt()
