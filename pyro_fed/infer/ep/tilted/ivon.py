"""Diagonal sites by natural-gradient steps from scores alone, on minibatches: "ivon", for networks.

The improved variational online Newton method, each step at a few antithetic draws under q̂ = N(m, 1/P) and a minibatch:

    g, ĥ    E_q̂[∇ log p_k] and E_q̂[-∇² log p_k], see `sites.antithetic`; no Hessian and no score of a single row
    P = S + Λ_-k
    S ← S + ρ (ĥ - S) + ½ ρ² (ĥ - S)² / P                        which leaves P positive, whatever ĥ is
    v ← β v + (1 - β) (g + η_-k - Λ_-k m)
    m ← m + α_t v / P                                            at most `longest` SDs in a coordinate

Source: Shen et al. (2024), *Variational learning is effective for large deep networks*, Algorithm 1; Lin et al. (2020)
for the term in ρ². Letters: S `site`, ρ 1 - `memory`, β `momentum`, α_t `rate`, which falls linearly to zero.

Deviations: the prior is not a weight decay but part of the cavity, which holds the other clients' sites too; S begins
as the site of the round before; draws are antithetic; the rate is in units of the Newton step, and falls in a round,
so that the noise of the last minibatches is not sent.

A site is the change of natural parameters that the client has made: (S, P m - η_-k).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.sites.antithetic import draw, score_and_curvature, turned


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(TiltedInference):
    """Diagonal sites by variational online Newton steps: gradients alone, on minibatches; for networks.

    Args:
        steps: steps a round.
        pairs: draws a step, each with its opposite: two gradients a pair.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        rate: α, of a Newton step; it falls linearly to zero in a round.
        momentum: β, in [0, 1).
        memory: 1 - ρ, the weight of the curvature so far in a step, in [0, 1).
        longest: no step moves a parameter by more than this many SDs.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks. Lin et al. (2020).

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.IVON(steps=50), covariance="diag"), fed)
    """

    steps: int = 10
    pairs: int = 1
    batch_size: int | None = 32
    rate: float = 0.3
    momentum: float = 0.9
    memory: float = 0.9
    longest: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "pairs")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "rate", "longest")
        check_between(self, "momentum", 0, 1, "[)")
        check_between(self, "memory", 0, 1, "[)")

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws, step sizes and minibatches."""
        draws = draw(self.steps, self.pairs, problem.dim, generator, problem.dtype)
        count = torch.arange(1, self.steps + 1, dtype=problem.dtype)
        rates = self.rate * (1 - (count - 1) / self.steps) / (1 - self.momentum**count)
        if self.batch_size is None:
            return draws, rates, ()
        return draws, rates, draw_minibatches(num_rows, self.batch_size, self.steps, generator, problem.dtype)

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the last step.

        Raises:
            SettingError: q has a full covariance.
        """
        if received.q.dense:
            raise SettingError("IVON: its sites are diagonal: take covariance='diag', or client='newton'")
        draws, rates, picks = noise
        cavity, dtype = received.cavity, problem.dtype
        mean = received.q.mean().to(dtype)
        carry = (mean, (received.q.precision - cavity.precision).to(dtype), torch.zeros_like(mean))
        batch, dims = with_batches(data, self.batch_size)
        const = ((cavity.precision.to(dtype), cavity.eta.to(dtype), draws.pool[0]), batch)
        xs = (draws.turns, rates, picks)
        (mean, site, _), _ = problem.scan(self._step, carry, const, xs, self.steps, ((0, 0, 0), dims))
        eta = (site.double() + cavity.precision) * mean - cavity.eta
        found = type(cavity)(site.double(), eta)
        return Tilted(found, found.product(cavity).is_proper(), {})

    def _step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, tuple[()]]:
        """One step of one client."""
        mean, site, velocity = carry
        (precision, eta, pool), rows = const
        turns, rate, picks = x
        total = site + precision
        sd = total.rsqrt()
        score, curvature = score_and_curvature(problem, mean, sd, turned(pool, turns), batch_of(rows, picks))
        velocity = self.momentum * velocity + (1 - self.momentum) * (score + eta - precision * mean)
        step = (rate * sd * velocity).clamp(-self.longest, self.longest)
        return (mean + sd * step, moved_site(site, curvature, total, 1 - self.memory), velocity), ()


def moved_site(site: Tensor, curvature: Tensor, total: Tensor, share: float) -> Tensor:
    """S after a step towards a curvature, by which the total P = S + Λ_-k stays positive: (D,).

    Args:
        site: S.
        curvature: ĥ, of any sign.
        total: P.
        share: ρ.
    """
    away = share * (curvature - site)
    return site + away + away.square() / (2 * total)
