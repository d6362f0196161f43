"""The bias of the average of visits by the clients' own noise, measured in one round: it bounds FALD's visits.

Clients that step in parallel from one point have noise of their own, with 1/p_c times the variance of their average's.
A visit of time t, in coordinates in which q = p Π_s q_s has covariance C, has client c at θ + √(u/p_c) C^½ ξ after the
time u, and the average at θ + √u C^½ ξ. The average of scores that are not linear differs there:

    δ(θ) = Σ_c p_c E[score_c(θ + √(u/p_c) C^½ ξ) - score_c(θ + √u C^½ ξ)]
         = u Σ_c p_c (1/p_c - 1) D_c(θ) + O(u²),        D_c = ½ (C : ∇²) score_c

The chain dθ = (-(θ - m) + C δ(θ))/2 dt + C^½ dW about q has a shift of parameter i, in SDs, and a relative increase of
its variance, of

    E[(C δ)_i] / √C_ii        and        E[(C δ)_i (θ - m)_i] / C_ii

to first order in δ, whose mean over a visit has the mean of u, `noise_time` t. Each client sends its own part of both
over u, 2 D numbers; the server adds them up. Beyond the first order scores that grow steeply pull their clients back,
so that they are usually upper bounds.

E over ξ is the mean over random signs, D_c a second difference. Conducive gradients are linear, and do not contribute;
the prior is in every client's score. For one client alone the noise is the average's.

Letters: p_c `share`, E(C δ)_i / u √C_ii `shift`, E(C δ)_i (θ - m)_i / u C_ii `widening`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding
from pyro_fed.density.derivatives import clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import gaussian, spread_points
from pyro_fed.infer.surrogates.measuring import Measuring, pulls
from pyro_fed.ops.gaussian import Gaussian

#: Distance of the scores of the second difference, in SDs of q: small enough for curvature, and large enough for the
#: rounding of scores in single precision, of some hundred SDs each, to be below a hundredth of it.
SCORE_STEP_SDS = 0.3


@dataclass(frozen=True, kw_only=True)
class OwnNoise(Measuring):
    """The round that measures the bias by the clients' own noise. Arguments are those of `Measuring`."""

    def unknown(self, q: Gaussian) -> State:
        """Shifts and widenings of zero."""
        return {"shift": torch.zeros_like(q.eta), "widening": torch.zeros_like(q.eta)}

    def measured(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> tuple[State, State, State]:
        """The clients' parts of shift and widening, (C, D) each."""
        q, share = gaussian(shared), local["share"].reshape(-1, 1)
        points = spread_points(q, num_points)
        generator = torch.Generator().manual_seed(seeding.COMMON)
        signs = (2 * torch.randint(2, points.shape[::2], generator=generator) - 1).to(points)
        mean, spread = q.moments()
        moved = SCORE_STEP_SDS * (q.transform(signs.unsqueeze(1).expand_as(points)) - mean)
        three = torch.stack([points - moved, points, points + moved]).flatten(0, 1).transpose(0, 1).to(problem.dtype)
        likelihoods = clients_likelihood_scores(problem, three, data).double().transpose(0, 1)
        prior = problem.mapped(prior_scores, (0,), calls=0)(three).double().transpose(0, 1)
        below, here, above = (prior + likelihoods / share).unflatten(0, (3, -1)).unbind()
        bend = pulls(q, (below - 2 * here + above) / (2 * SCORE_STEP_SDS**2))
        variance = spread if spread.dim() == mean.dim() else spread.diagonal(dim1=-2, dim2=-1)
        away = (points - mean) / variance.sqrt()
        own = 1 - share  # p_c (1/p_c - 1)
        found = {"shift": own * bend.mean(0), "widening": own * (bend * away).mean(0)}
        return found, {}, {name: value.abs().amax(-1) for name, value in found.items()}


def noise_time(local_steps: int, midpoint: bool) -> float:
    """The mean over a visit's scores of the time of noise before each, as a share of the visit.

    With `midpoint` a score is taken half of the next noise further on, which has a quarter of its variance.
    """
    return ((local_steps - 1) / 2 + 0.25 * midpoint) / local_steps


def longest_parallel_visit(error: float, shared: State, local_steps: int, midpoint: bool, limit: float) -> float:
    """The longest visit t, at most `limit`, that shifts no mean by over `error` SDs, and widens no variance by more.

    `shared` is the server's state of `OwnNoise`; `error` is relative for variances, and `midpoint` as in `noise_time`.
    """
    worst = max(float(shared[name].abs().amax()) for name in ("shift", "widening"))
    rate = worst * noise_time(local_steps, midpoint)
    return limit if rate * limit <= error else error / rate
