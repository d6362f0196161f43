"""Stochastic variational inference on the tilted density with a Gaussian guide: "svi".

    max_{a, B}  E_{z ~ N(0, I)}[log p_k(θ) + log q_-k(θ)] + log |det B|,    θ = m + A (a + B z)

by Adam (Kingma & Ba 2015) with reparametrised gradients, as Pyro's `SVI` does with `Trace_ELBO` and an automatic
Gaussian guide, for all clients of a round in one compiled step. θ is whitened by a Newton step on the tilted density
(A A' its inverse curvature, m its end), so that the step size has no units; it falls linearly to zero. B is diagonal,
or lower triangular with a positive diagonal, held as its logarithm.

Letters: a `loc`, B `scale`, `svi_steps`, `svi_step_size`, `svi_samples`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm import Noise
from pyro_fed.data import ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.infer.clients.base import Client, Received, Tilted, site_from, tilted_scale
from pyro_fed.infer.tilted_elbo import lower, negative_elbo
from pyro_fed.problem import Problem


@dataclass(frozen=True, kw_only=True)
class SVIClient(Client):
    """Adam on the evidence lower bound.

    Args:
        svi_steps: steps a round.
        svi_step_size: Adam's rate, in SDs of q.
        svi_samples: draws of z a step.
        batch_size: rows a step; None takes all.
        adam: β_1, β_2 and ε.
    """

    svi_steps: int
    svi_step_size: float
    svi_samples: int
    batch_size: int | None
    adam: tuple[float, float, float]

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal draws, minibatches, and the step's number (for Adam's bias correction)."""
        z = torch.randn(self.svi_steps, self.svi_samples, problem.dim, generator=generator, dtype=torch.float64)
        count = torch.arange(1, self.svi_steps + 1, dtype=torch.float64)
        if self.batch_size is None:
            return z, count, ()
        return z, count, draw_minibatches(num_rows, self.batch_size, self.svi_steps, generator, problem.dtype)

    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the fitted guides."""
        q = tilted_scale(self, problem, received, data)
        factor, mean = q.root(), q.mean()
        batch, dims = with_batches(data, self.batch_size)
        full = q.precision.dim() > 2
        shape = (*q.eta.shape, q.dim) if full else q.eta.shape
        start = (torch.zeros_like(q.eta), q.eta.new_zeros(shape))
        zero = tuple(torch.zeros_like(part) for part in start)
        const = ((received.cavity.precision, received.cavity.eta, factor, mean), batch)
        carry = (start, zero, tuple(part.clone() for part in zero))
        ((loc, raw), _, _), _ = problem.scan(self._step, carry, const, noise, self.svi_steps, ((0, 0, 0, 0), dims))
        middle = mean + (factor @ loc.unsqueeze(-1)).squeeze(-1) if full else mean + factor * loc
        spread = factor @ lower(raw) if full else factor * raw.exp()
        covariance = spread @ spread.mT if full else spread.square()
        return site_from(type(q).from_moments(middle, covariance), received.cavity)

    def _step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, tuple[()]]:
        params, first, second = carry
        frame, rows = const
        draws, count, picks = x
        batch = batch_of(rows, picks)

        def objective(guide: tuple[Tensor, Tensor]) -> Tensor:
            return negative_elbo(problem, guide, frame, batch, draws)

        gradient = grad(objective)(params)
        b1, b2, eps = self.adam
        rate = self.svi_step_size * (1 - (count - 1) / self.svi_steps)
        first = tuple(b1 * m + (1 - b1) * g for m, g in zip(first, gradient, strict=True))
        second = tuple(b2 * v + (1 - b2) * g.square() for v, g in zip(second, gradient, strict=True))
        params = tuple(
            p - rate * (m / (1 - b1**count)) / ((v / (1 - b2**count)).sqrt() + eps)
            for p, m, v in zip(params, first, second, strict=True)
        )
        return (params, first, second), ()
