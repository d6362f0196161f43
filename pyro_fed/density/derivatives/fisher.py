"""Fisher information of the observations' distribution, row by row: a curvature that is never negative.

    F(θ) = Σ_i w_i E_{y ~ p(y | x_i, θ)}[∇ log p(y | x_i, θ) ∇ log p(y | x_i, θ)']

Source: Guo et al., Eq. (4), with the expectation over y taken exactly where they sample it (after Kunstner et
al. 2019, labels come from the model, not from the data): over all values of a discrete observation, and for a
normal one by the three-point Gauss-Hermite rule, which is exact for the location's and the scale's score.

Deviation: for other distributions, and where latents of the rows are integrated out, the observed y is used (the
"empirical" Fisher information), and `fisher_kind` says so.
"""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.func import jacrev, vjp

from pyro_fed.density.latents.quadrature import GAUSSIAN_ORDER, gauss_hermite
from pyro_fed.density.observations import observation_distribution
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running.trace_sites import without_event_dims
from pyro_fed.ops.batched import quiet


def fisher_kind(problem: Problem) -> str:
    """Say "expected" where the expectation over y is exact for this model, else "empirical"."""
    if len(problem.layout.observed) != 1 or problem.layout.factors or problem.local_dim:
        return "empirical"
    z = torch.zeros(problem.dim, dtype=problem.dtype)
    fn = observation_distribution(problem, z, tuple(leaf[:1] for leaf in problem.rows))
    known = fn.has_enumerate_support or isinstance(without_event_dims(fn), dist.Normal)
    return "expected" if known and not fn.event_shape else "empirical"


def fisher_information(problem: Problem, z: Tensor, batch: Batch, structure: str) -> Tensor:
    """F(θ) of a client's batch.

    Args:
        problem: the model.
        z: (D,).
        batch: rows and weights.
        structure: "full" for (D, D), "diag" for the diagonal (D,).
    """
    if fisher_kind(problem) == "empirical":
        with quiet:
            scores = jacrev(lambda t: problem.pointwise_log_lik(t, batch.rows))(z).unsqueeze(1)
        probs = torch.ones_like(batch.weight).unsqueeze(1)
    else:
        scores, probs = problem.vmap(lambda rows: _scores_of_row(problem, z, rows))(batch.rows)
    weights = probs * batch.weight.unsqueeze(1)
    if structure == "full":
        return torch.einsum("iv,ivd,ive->de", weights, scores, scores)
    return torch.einsum("iv,ivd->d", weights, scores.square())


def _scores_of_row(problem: Problem, z: Tensor, row: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Scores at each value of a row's observation, (V, D), and the values' probabilities (V,)."""
    rows = tuple(leaf.unsqueeze(0) for leaf in row)
    values, probs = _quadrature(observation_distribution(problem, z, rows))

    def log_probs(t: Tensor) -> Tensor:
        fn = observation_distribution(problem, t, rows)
        return torch.stack([fn.log_prob(value).reshape(()) for value in values])

    pull = vjp(log_probs, z)[1]
    units = torch.eye(len(values), dtype=z.dtype, device=z.device)
    return torch.stack([pull(unit)[0] for unit in units]), probs


def _quadrature(fn: Any) -> tuple[list[Tensor], Tensor]:
    """Values y and probabilities that give E[f(y)] under a discrete or a normal distribution."""
    if fn.has_enumerate_support:
        values = list(fn.enumerate_support())
        return values, torch.stack([fn.log_prob(value).reshape(()) for value in values]).exp()
    base, (nodes, log_weights) = without_event_dims(fn), gauss_hermite(GAUSSIAN_ORDER, 1)
    return [base.loc + node * base.scale for node in nodes.flatten().tolist()], log_weights.exp().to(base.loc)
