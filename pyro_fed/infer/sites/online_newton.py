"""Diagonal Gaussian sites by natural-gradient steps from scores alone, on minibatches: for networks.

The improved variational online Newton method (IVON), each step at a few antithetic draws under q̂ = N(m, 1/P):

    g = (∇f(m + σε) + ∇f(m - σε)) / 2,    ĥ = ε (∇f(m - σε) - ∇f(m + σε)) / (2 σ),    f = log p_k, σ = P^(-1/2)
    P = S + Λ_-k
    S ← S + ρ (ĥ - S) + min(½ ρ² (ĥ - S)² / P, ρ |ĥ - S|)        which leaves P positive, whatever ĥ is;
        limited so that P stays within [P_0 / f, f P_0]
    r = g + η_-k - Λ_-k m,    r ← r min(1, √(c N_k / α ‖r‖²)),    ‖r‖² = Σ_i r_i² / P_i
    v ← β v + (1 - β) r
    m ← m + α_t v / P                                            at most `longest` SDs in a coordinate

g and ĥ estimate E_q̂[∇f] and E_q̂[-∂²f/∂θ²] (Price's identity); the score, which would be most of the noise of ĥ,
cancels. A step's ε is a segment of the client's pool of independent normal numbers, which begins at a random place and
continues cyclically, so that a round of any number of steps needs only one vector.

Source: Shen et al. (2024), *Variational learning is effective for large deep networks*, Algorithm 1; Lin et al. (2020)
for the term in ρ². Letters: Λ_-k and η_-k `cavity`, S `site`, P_0 the total where a round begins, f `largest_factor`, ρ
1 - `curvature_memory`, β `momentum`, α_t `rate`, c `most_gain`, N_k the client's rows.

Deviations: the prior is not a weight decay but part of the cavity, which also contains the other clients' sites; S
starts as the site of the previous round; draws are antithetic; the rate is in units of the Newton step and falls
linearly to zero in a round, so that the noise of the last minibatches is not sent. The term in ρ² is limited by the
term in ρ: ĥ of a narrow parameter among wide ones may be a thousand times P, and its square would make SDs too small to
recover. P changes at most by a factor f per round: ĥ of a unit that few rows activate has heavy tails, and a client
whose precision rises twentyfold would dominate the geometric mean of the clients' Gaussians.

The score r is scaled down so that the predicted gain α ‖r‖² of its step is at most c nats per row. If the scores of N_k
rows sum to r, the curvature along the step is at least ‖r‖² / N_k in units of P, and a longer step overshoots. With
many more parameters than rows, a diagonal P does not reveal this curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.ops.gaussian import DiagGaussian, Gaussian

#: Smallest size of the pool, for models with few parameters.
MIN_POOL = 4096
#: Assumed curvature of a row before the first estimate.
FIRST_CURVATURE = 0.1


class Draws(NamedTuple):
    """Draws of one client's round: `pool`, (1, L) normal numbers, L ≥ D, and `turns`, (steps, pairs) starts in it."""

    pool: Tensor
    turns: Tensor


def draw(steps: int, pairs: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Draws:
    """The randomness of one client's round; a step has `pairs` antithetic pairs of draws (D,)."""
    length = max(dim, MIN_POOL)
    pool = torch.randn(1, length, generator=generator, dtype=torch.float64).to(dtype)
    return Draws(pool, torch.randint(length, (steps, pairs), generator=generator))


def draws_from_pool(pool: Tensor, turns: Tensor, dim: int) -> Tensor:
    """The draws of a step, (pairs, D), from the pool (L,) and the start of each, (pairs,)."""
    place = torch.arange(dim, device=pool.device) + turns.unsqueeze(-1)
    return torch.cat([pool, pool[:dim]])[place]


def score_and_curvature(problem: Problem, mean: Tensor, sd: Tensor, eps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """g and ĥ of the module's docstring, (D,), under N(mean, sd²) from the draws `eps` (pairs, D)."""
    away = sd * eps
    points = torch.cat([mean + away, mean - away])

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    scores = problem.vmap(grad(log_lik))(points)
    plus, minus = scores.chunk(2)
    return scores.mean(0), (eps * (minus - plus)).mean(0) / (2 * sd)


@dataclass(frozen=True, kw_only=True)
class OnlineNewton:
    """Variational online Newton steps and their settings; base of the classes named IVON."""

    steps: int = 10
    pairs: int = 1
    batch_size: int | None = 32
    rate: float = 0.3
    momentum: float = 0.9
    curvature_memory: float = 0.9
    longest: float = 1.0
    largest_factor: float = 4.0
    most_gain: float = 1.0
    spread: float = 1.0
    rounds: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "pairs")
        check_at_least(self, 1, "batch_size", "rounds", allow_none=True)
        check_positive(self, "rate", "longest", "most_gain", "spread")
        check_between(self, "largest_factor", 1, math.inf)
        check_between(self, "momentum", 0, 1, "[)")
        check_between(self, "curvature_memory", 0, 1, "[)")

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws, rates and minibatches of one client's round."""
        draws = draw(self.steps, self.pairs, problem.dim, generator, problem.dtype)
        count = torch.arange(1, self.steps + 1, dtype=problem.dtype)
        rates = self.rate * (1 - (count - 1) / self.steps) / (1 - self.momentum**count)
        if self.batch_size is None:
            return draws, rates, ()
        return draws, rates, draw_minibatches(num_rows, self.batch_size, self.steps, generator, problem.dtype)

    def fit(self, problem: Problem, q: Gaussian, cavity: Gaussian, data: ClientData, noise: Noise) -> DiagGaussian:
        """The sites q̂_k / cavity of C clients, float64, after a round's steps from the diagonal q (C,)."""
        draws, rates, picks = noise
        mean = q.mean().to(problem.dtype)
        carry = (mean, (q.precision - cavity.precision).to(problem.dtype), torch.zeros_like(mean))
        batch, dims = with_batches(data, self.batch_size)
        fixed = (cavity.precision.to(problem.dtype), cavity.eta.to(problem.dtype), q.precision.to(problem.dtype))
        const, xs = ((*fixed, draws.pool[0]), batch), (draws.turns, rates, picks)
        (mean, site, _), _ = problem.scan(self._step, carry, const, xs, self.steps, ((0, 0, 0, 0), dims))
        precision = site.double()
        return DiagGaussian(precision, (precision + cavity.precision) * mean - cavity.eta)

    def _step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, tuple[()]]:
        """One step of one client."""
        mean, site, velocity = carry
        (precision, eta, first, pool), rows = const
        turns, rate, picks = x
        total = site + precision
        sd = total.rsqrt()
        eps, width = draws_from_pool(pool, turns, len(mean)), sd if self.spread == 1.0 else self.spread * sd
        batch = batch_of(rows, picks)
        score, curvature = score_and_curvature(problem, mean, width, eps, batch)
        score = self._cut(score + eta - precision * mean, sd, batch)
        velocity = self.momentum * velocity + (1 - self.momentum) * score
        step = (rate * sd * velocity).clamp(-self.longest, self.longest)
        most, least = self.largest_factor * first - precision, first / self.largest_factor - precision
        site = torch.maximum(torch.minimum(self._site_after_step(site, curvature, total), most), least)
        return (mean + sd * step, site, velocity), ()

    def _cut(self, score: Tensor, sd: Tensor, batch: Batch) -> Tensor:
        """The score of the mean, (D,), scaled so that a step predicts at most `most_gain` nats per weighted row."""
        length, most = (sd * score).norm(), (self.most_gain / self.rate * batch.weight.sum()).sqrt()
        longer = torch.maximum(length, most).clamp_min(torch.finfo(score.dtype).tiny)  # both are zero without rows
        return score * (most / longer)

    def curvature(
        self, problem: Problem, point: Tensor, prior: Tensor, clients: Tensor, data: ClientData, noise: Noise
    ) -> Tensor:
        """S_k ≈ E_q[-∇² log p_k], (C, D), float64, with q = N(point, 1 / (Λ_0 + K S_k)), as if all clients were equal.

        `prior` is Λ_0 (C, D), positive, and `clients` K (C,); the curvature of a client without rows is zero.
        """
        draws, _, picks = noise
        batch, dims = with_batches(data, self.batch_size)
        fixed = tuple(part.to(problem.dtype) for part in (point, prior, clients))
        first = FIRST_CURVATURE * data.num_rows.to(problem.dtype).unsqueeze(-1)
        const, xs = ((*fixed, draws.pool[0]), batch), (draws.turns, picks)
        carry = first.expand(point.shape)
        site, _ = problem.scan(self._measure, carry, const, xs, self.steps, ((0, 0, 0, 0), dims))
        curvature: Tensor = torch.where((data.num_rows > 0).unsqueeze(-1), site.clamp_min(0), 0.0).double()
        return curvature

    def _measure(self, problem: Problem, site: Tensor, const: Any, x: Any) -> tuple[Tensor, tuple[()]]:
        """The curvature after one step of one client, assuming that all clients have the same."""
        (point, prior, clients, pool), rows = const
        turns, picks = x
        total = prior + clients * site.clamp_min(0)
        eps, batch = draws_from_pool(pool, turns, len(point)), batch_of(rows, picks)
        curvature = score_and_curvature(problem, point, total.rsqrt(), eps, batch)[1]
        return self._site_after_step(site, curvature, total / clients), ()

    def _site_after_step(self, site: Tensor, curvature: Tensor, total: Tensor) -> Tensor:
        """S after a step towards a curvature of any sign; `total` is P, or P / K if K clients share this S: (D,)."""
        away = (1 - self.curvature_memory) * (curvature - site)
        return site + away + torch.minimum(away.square() / (2 * total), away.abs())
