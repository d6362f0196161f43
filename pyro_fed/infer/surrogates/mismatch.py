"""The distance of the clients' surrogates from their likelihoods, measured in one round: it bounds FSGLD's visits.

    e_s(θ) = 1/f_s [∇ log p(x_s | θ) - α ∇ log q_s(θ)] - (1 - α) Σ_r ∇ log q_r(θ)

is the part of a chain's score that is specific to client s: the f-weighted mean over clients is that of the posterior.
With C the covariance of the Gaussian q = p Π_s q_s, (C e_s)_i / sqrt(C_ii) pulls at parameter i, in its SDs. Each
client sends their mean squares over standardised Sobol points under q, D numbers; the server keeps Σ_s f_s of them,
which `ops.langevin` turns into the longest visit. The squares are about zero, and so include the part that all clients'
errors share, which is harmless: they are an upper bound, close for more than a few clients. The record has each
client's worst.

The longest step depends on the largest curvature λ_s of a chain's score at a client, in coordinates in which q is N(0,
I), A A' = C: of

    I - 1/f_s A' [∇² log p(x_s | θ) + α P_s] A

at a few of the points (prior and α ≠ 1 are left out of the brackets), by power iteration; the server keeps the largest.

Letters: f_s `share`, e_s `errors`, Σ f_s E (C e_s)_i² / C_ii `mismatch`, λ `curvature`, A `root`, P_s `precision`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.derivatives import clients_likelihood_curves, clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import gaussian, spread_points
from pyro_fed.infer.sites.power_iteration import power_iteration
from pyro_fed.infer.surrogates.contributions import SquareContributions
from pyro_fed.infer.surrogates.measuring import Measuring, pulls
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times


@dataclass(frozen=True, kw_only=True)
class Mismatch(Measuring):
    """The round that measures the surrogates' errors.

    Args:
        alpha: weight of the conducive gradient.
        curved_points: of the points, evenly spaced, at which the curvature is measured.

    The others are those of `Measuring`.
    """

    alpha: float = 1.0
    curved_points: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "curved_points")

    def unknown(self, q: Gaussian) -> State:
        """Errors of zero, and the curvature of q."""
        return {"mismatch": torch.zeros_like(q.eta), "curvature": q.eta.new_ones(())}

    def measured(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> tuple[State, State, State]:
        """f_s times the mean squares of the pulls, (C, D), and the largest curvature, (C,)."""
        q, sites, share = gaussian(shared), gaussian(local), local["share"].reshape(-1, 1)
        points = spread_points(q, num_points)
        at = points.transpose(0, 1).to(problem.dtype)
        scores = clients_likelihood_scores(problem, at, data)
        errors = (scores.double().transpose(0, 1) - self.alpha * sites.score(points)) / share
        if self.alpha != 1:
            prior = problem.mapped(prior_scores, (0,), calls=0)(at).double().transpose(0, 1)
            errors = errors - (1 - self.alpha) * (q.score(points) - prior)
        squares = pulls(q, errors).square().mean(0)
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

    def contributions(self) -> Contributions:
        """Squares and curvatures of the clients."""
        return SquareContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the squares, and take the largest curvature."""
        return shared | {"mismatch": messages["mismatch"].sum(0), "curvature": messages["curvature"].amax(0)}
