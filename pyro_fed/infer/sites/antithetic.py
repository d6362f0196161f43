"""Antithetic normal draws for many steps at the memory of one vector, and expectations from scores alone.

A step's draw ε is a part of the client's pool of independent normal numbers, from a random place on and cyclically past
its end: each ε is D independent normal numbers, and those of two steps share entries only at different places. So a
round of any number of steps holds one vector. Each ε is paired with its opposite:

    E_q[∇f] ≈ (∇f(m + σε) + ∇f(m - σε)) / 2
    E_q[-∂²f/∂θ_i²] = E[ε_i (∂_i f(m - σε) - ∂_i f(m + σε)) / (2 σ_i)]          Price's identity

with q = N(m, σ²). The score itself, which would be most of the noise, cancels in the difference.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch

#: Smallest pool, in numbers, so that models with few parameters have enough.
SMALLEST_POOL = 4096


class Draws(NamedTuple):
    """Draws of one client's round: `pool`, (1, L) normal numbers, L ≥ D, and `turns`, (steps, pairs) places in it."""

    pool: Tensor
    turns: Tensor


def draw(steps: int, pairs: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Draws:
    """The randomness of one client's round; a step has `pairs` draws (D,), each with its opposite."""
    length = max(dim, SMALLEST_POOL)
    pool = torch.randn(1, length, generator=generator, dtype=torch.float64).to(dtype)
    return Draws(pool, torch.randint(length, (steps, pairs), generator=generator))


def draws_from_pool(pool: Tensor, turns: Tensor, dim: int) -> Tensor:
    """The draws of a step, (pairs, D), from the pool (L,) and the place where each begins, (pairs,)."""
    place = torch.arange(dim, device=pool.device) + turns.unsqueeze(-1)
    return torch.cat([pool, pool[:dim]])[place]


def score_and_curvature(problem: Problem, mean: Tensor, sd: Tensor, eps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Expectations of the score of a client's log-likelihood and of its negative second derivatives, each (D,).

    They are under N(m, σ²), m (D,) `mean` and σ (D,) `sd`, by the draws `eps` (pairs, D).
    """
    away = sd * eps
    points = torch.cat([mean + away, mean - away])

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    scores = problem.vmap(grad(log_lik))(points)
    plus, minus = scores.chunk(2)
    return scores.mean(0), (eps * (minus - plus)).mean(0) / (2 * sd)
