"""Estimates of the posterior's score at a client: one class for each equation; its fields are the client's state.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Eq. (4)-(7), Algorithm 1.

    MinibatchScore        v_s(θ) = ∇ log p(θ) + 1/f_s Σ_batch w_i ∇ log p(x_i | θ),    w_i = N_s/m         (4)
    ControlVariateScore   v_s(θ) = ∇ log p(θ) + 1/f_s Σ_batch w_i [∇ log p(x_i | θ) - ∇ log p(x_i | θ*)]
                                              + 1/f_s Σ_all ∇ log p(x_i | θ*)
    SagaScore             v_s(θ) = ∇ log p(θ) + 1/f_s Σ_batch w_i [∇ log p(x_i | θ) - g_i] + 1/f_s Σ_all g_i
    ConduciveScore        v_s(θ) + α g_s(θ),    g_s(θ) = ∇ log q(θ) - 1/f_s ∇ log q_s(θ),   q = Π_s q_s     (6), (7)

The control variate is computed at one point θ* (Baker et al., 2019), or at the chain's position at the start of a visit
as in SVRG-LD (Dubey et al., 2016, Algorithm 2). SAGA-LD (Algorithm 1 there) stores the gradient g_i of each row from
when it was last drawn, in a memory that each step passes to the next. The f-weighted mean of each estimate over clients
and minibatches is the posterior's score.

With Gaussian surrogates g_s is linear, so that a client stores its value at one point θ* and its slope:

    g_s(θ) = g_s(θ*) - (P - P_s/f_s)(θ - θ*),    P = Σ_s P_s

and one evaluation costs one product of a matrix and a vector, for any number of clients.

Deviation (`trust`): beyond R posterior SDs from θ*, g_s is evaluated at the point of that distance in θ's direction.
P - P_s/f_s is indefinite, so that far from θ*, g_s would drive a chain away exponentially during a visit. The point is
the same for all clients, so the f-weighted mean of g_s is still zero.

Fields have a leading axis of clients outside of steps; in a step they belong to one client.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad, vjp

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import times_transposed

#: State of an estimate from step to step, a pytree; () of all but `SagaScore`.
Memory = Any


class Score(Protocol):
    """An estimate of the posterior's score: one of the classes below."""

    def estimate(
        self, problem: Problem, z: Tensor, batch: Batch, picks: Any = (), memory: Memory = ()
    ) -> tuple[Tensor, Memory]:
        """The estimate at θ, (D,), from a step's rows, those at `picks` or all; and the memory after it."""


class MinibatchScore(NamedTuple):
    """Eq. (4), from the rows of a step alone; `inverse_f` is 1/f_s."""

    inverse_f: Tensor

    def estimate(
        self, problem: Problem, z: Tensor, batch: Batch, picks: Any = (), memory: Memory = ()
    ) -> tuple[Tensor, Memory]:
        """v_s(θ), see `Score`."""

        def log_target(z: Tensor) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, batch.rows)
            return log_prior + self.inverse_f * (pointwise * batch.weight).sum()

        return grad(log_target)(z), memory


class ControlVariateScore(NamedTuple):
    """Eq. (4) with each row's gradient minus the one at θ*, whose sum over all rows is known."""

    inverse_f: Tensor  # 1/f_s
    anchor: Tensor  # θ*, (D,)
    anchor_score: Tensor  # Σ ∇ log p(x_i | θ*) over all rows of the client, (D,)

    def estimate(
        self, problem: Problem, z: Tensor, batch: Batch, picks: Any = (), memory: Memory = ()
    ) -> tuple[Tensor, Memory]:
        """v_s(θ), see `Score`."""

        def log_target(z: Tensor, prior_weight: Tensor) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, batch.rows)
            return prior_weight * log_prior + self.inverse_f * (pointwise * batch.weight).sum()

        # One pass for both points; the prior has no rows and needs no correction.
        both = torch.stack([z, self.anchor])
        here, there = problem.vmap(grad(log_target))(both, torch.eye(2, dtype=z.dtype, device=z.device)[0])
        return here - there + self.inverse_f * self.anchor_score, memory


class Table(NamedTuple):
    """The memory of `SagaScore`: g_i, (N, D), and Σ g_i, (D,)."""

    table: Tensor
    table_sum: Tensor


class SagaScore(NamedTuple):
    """Eq. (4) with each row's gradient minus the one from when it was last drawn; `inverse_f` is 1/f_s."""

    inverse_f: Tensor

    def estimate(
        self, problem: Problem, z: Tensor, batch: Batch, picks: Any = (), memory: Memory = ()
    ) -> tuple[Tensor, Memory]:
        """v_s(θ), and the table with the rows' gradients at θ in place of their old ones, see `Score`."""
        # The table has each row once, at its power; the weight N/m that makes up for those not drawn comes after.
        once = Batch(batch.rows, batch.weight / picks.weight)
        change = weighted_row_scores(problem, z, once) - memory.table[picks.position]
        likelihood = self.inverse_f * (picks.weight @ change)
        score = grad(problem.log_prior)(z) + likelihood + self.inverse_f * memory.table_sum
        table = torch.index_put(memory.table, (picks.position,), change, accumulate=True)
        return score, Table(table, memory.table_sum + change.sum(0))


class TrustRegion(NamedTuple):
    """R posterior SDs (`radius`) about θ*; `metric`, the posterior's precision, (D, D) or (D,), measures distances."""

    metric: Tensor
    radius: Tensor

    def reach(self, offset: Tensor) -> Tensor:
        """The part of an offset from θ* that is within the region."""
        distance = (offset * times_transposed(self.metric, offset)).sum().sqrt()
        return (self.radius / distance).clamp_max(1.0)


class ConduciveGradient(NamedTuple):
    """α g_s of Eq. (6), which is linear."""

    anchor: Tensor  # θ*, (D,)
    value: Tensor  # α g_s(θ*), (D,)
    slope: Tensor  # α (P - P_s/f_s), (D, D) or (D,)
    region: TrustRegion | tuple[()] = ()  # where it grows; () if it grows everywhere

    def at(self, z: Tensor) -> Tensor:
        """α g_s(θ), or at the nearest trusted point, (D,)."""
        offset = z - self.anchor
        # Both matrices are symmetric; compiled sums along columns are several times as fast.
        change = times_transposed(self.slope, offset)
        if self.region:
            change = self.region.reach(offset) * change
        return self.value - change


class ConduciveScore(NamedTuple):
    """Eq. (7): an estimate v_s, `unbiased`, with the conducive gradient α g_s added."""

    unbiased: Score
    conducive: ConduciveGradient

    def estimate(
        self, problem: Problem, z: Tensor, batch: Batch, picks: Any = (), memory: Memory = ()
    ) -> tuple[Tensor, Memory]:
        """v_s(θ) + α g_s(θ), see `Score`."""
        score, memory = self.unbiased.estimate(problem, z, batch, picks, memory)
        return score + self.conducive.at(z), memory


def conducive_gradients(sites: Gaussian, visit_shares: Tensor, anchor: Tensor, weight: float) -> ConduciveGradient:
    """α g_s of all clients, of sites q_s (K,), shares f_s (K,), θ* (D,) and the weight α; everywhere linear."""
    own = sites.power(1 / visit_shares.to(sites.eta.dtype))
    product = sites.product_over()
    at = anchor.to(sites.eta.dtype)
    value = weight * (product.score(at) - own.score(at))
    slope = weight * (product.precision - own.precision)
    return ConduciveGradient(
        anchor.expand(len(visit_shares), *anchor.shape), value.to(anchor.dtype), slope.to(anchor.dtype)
    )


def weighted_row_scores(problem: Problem, z: Tensor, batch: Batch) -> Tensor:
    """Gradient of each row's log-likelihood times its weight: (m, D)."""
    return batch.weight.unsqueeze(-1) * row_scores(problem, z, batch.rows)


def row_scores(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
    """Gradients of the log-likelihoods of rows (m, ...) at z (D,), (m, D), by min(m, D) backward passes."""
    value, pull = vjp(lambda z: problem.log_parts(z, rows)[1], z)[:2]
    if len(value) <= len(z):
        by_row: Tensor = problem.vmap(lambda e: pull(e)[0])(torch.eye(len(value)).to(value))
        return by_row
    pushed = vjp(lambda v: pull(v)[0], torch.zeros_like(value))[1]  # `pull` is linear: its own pullback is the Jacobian
    columns: Tensor = problem.vmap(lambda e: pushed(e)[0])(torch.eye(len(z)).to(z))
    return columns.T
