"""SAGA-LD: Langevin dynamics on the pooled data, with a gradient kept for every row.

Source: Dubey et al. (2016), *Variance reduction in stochastic gradient Langevin dynamics*, Algorithm 1.

    v(θ_t) = ∇ log p(θ_t) + N/m Σ_{i in I_t} [∇ log p(x_i | θ_t) - g_i] + Σ_i g_i
    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)
    g_i ← ∇ log p(x_i | θ_t)    for the rows i in I_t

Letters: g `table` (N, D) of each chain, Σ g `table_sum`, I_t `picks`, m `batch_size`; the others as in
`langevin.langevin`. The table begins with the gradients where the chain does.

The minibatch's noise is that of how far gradients have changed since their rows were last drawn, and goes with the
step, without SVRG-LD's gradient of all rows in every epoch; N times D numbers a chain are its price. With the
deviations of `langevin.langevin` (preconditioner, midpoint, derived step), all off in `inference/saga_ld.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.langevin import picked
from pyro_fed.infer.langevin.sgld import SGLD
from pyro_fed.ops.langevin import injected

#: Numbers in the tables of all chains beyond which they are refused: 4 GB in double precision.
LARGEST_TABLES = 500_000_000


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SAGALD(SGLD):
    """SAGA-LD: SGLD whose minibatches are corrected by the gradient that each row had when it was last drawn.

    Args:
        num_chains: M, chains that run at once.
        local_steps: T, steps a round.
        burn_in: first steps of each chain that are not kept.
        thin: one step in so many is kept.
        target_ess: the run ends when the slowest coordinate has so many effective draws (all chains together)
            and R-hat is at most 1.01 (1.025 of ten chains); None runs all rounds.
        batch_size: m, rows a step, weighted to all; from as many rows on as there are, all are taken.
        minibatches: "anew" alone, each drawn without regard to the others: no row may stand twice in one.
        step_size: h_0, the variance of the injected noise; None derives it, which needs `precondition`.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ, in [0, 1]; 0 keeps the step constant.
        decay_offset: steps after which the step has fallen to 2^-γ; only with a `decay`.
        surrogates: where the Gaussians q_s come from: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None runs without: then give `step_size` and turn `precondition` off.
        precondition: use the covariance of p(θ) Π_s q_s(θ) as preconditioner, so that one step size serves posteriors
            of any scale.
        control_variate: refused: the kept gradients are one.
        midpoint: evaluate and keep the chain at θ + η/2, whose variance at a Gaussian is exact for every stable step.
        largest_step: largest h where no `step_size` is given, in (0, 1]; stability ends at 4.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others; or, in a run, tables of
            more than 500 million numbers.

    References:
        Dubey, Reddi, Póczos, Smola, Xing & Williamson (2016), Algorithm 1.

    Example:
        >>> idata = pf.run(pf.SAGALD(), fed)
        >>> plain = {"surrogates": None, "precondition": False, "midpoint": False}
        >>> idata = pf.run(pf.SAGALD(step_size=1e-4, **plain), fed)
    """

    minibatches: Literal["reshuffled", "anew"] = "anew"
    control_variate: bool | Literal["visit"] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "the gradients that are kept of every row are one; SGLD takes it", "control_variate")
        refuse_unused(self, "no row may stand twice in a minibatch, as at the seams of permutations", "minibatches")
        if self.batch_size is None:
            raise SettingError("SAGALD: batch_size=None takes all rows, and there is nothing to correct; use SGLD")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Chains as of SGLD, and room for their tables.

        Raises:
            SettingError: the tables would be too large.
        """
        numbers = self.num_chains * problem.num_rows * problem.dim
        if numbers > LARGEST_TABLES:
            raise SettingError(
                f"SAGALD: gradients of {problem.num_rows} rows in {problem.dim} dimensions for {self.num_chains} "
                f"chains are {numbers:.3g} numbers, more than {LARGEST_TABLES:.3g}: take fewer chains, or "
                'SGLD(control_variate="visit"), which is SVRG-LD'
            )
        shared, local = super().init(problem, num_clients, generator, start)
        room = shared["position"].new_zeros(self.num_chains, problem.num_rows, problem.dim)
        return shared | {"table": room, "table_sum": torch.zeros_like(shared["position"])}, local

    def download(self, shared: State, clients: Tensor) -> State:
        """Slot i gets the end and the table of chain i."""
        tables = {name: shared[name] for name in ("table", "table_sum")}
        return super().download(shared, clients) | tables

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """T steps of each chain; the table of its start in the first round."""
        tables = {name: shared[name] for name in ("table", "table_sum")}
        whole = data.row_index.shape[-1] <= int(self.batch_size or 0)
        if whole:  # every minibatch is all rows
            message, news, figures = super().local_step(problem, shared, local, data, noise)
            return message | tables, news, figures
        if not bool(local["ready"].all()):
            table = problem.mapped(_row_scores, (0, BATCHES), calls=0)(shared["position"], data.full_batch())
            tables = {"table": table, "table_sum": table.sum(1)}
        news = self._first_visit(problem, shared, local, data)
        rows, dims = with_batches(data, self.batch_size)
        const = local | {name: value for name, value in news.items() if name in local}
        picks = picked(noise["position"], noise["weight"], data.num_rows, self.local_steps)
        xs = {"normal": noise["normal"], "step_size": self._visit_steps(shared, local | news), "picks": picks}
        carry = (shared["position"], tables["table"], tables["table_sum"])
        (position, table, total), (path, norms) = problem.scan(
            self._saga_step, carry, (const, rows), xs, self.local_steps, (dict.fromkeys(const, 0), dims)
        )
        sent = path[self.stride - 1 :: self.stride]
        message = self._sent(shared, position, sent, norms, xs["step_size"]) | {"table": table, "table_sum": total}
        return message, news, {"gradient_norm": norms.mean(0)}

    def _saga_step(self, problem: Problem, carry: Any, const: Any, x: Any) -> tuple[Any, Any]:
        position, table, total = carry
        local, data = const
        h, normal, picks, factor = x["step_size"], x["normal"], x["picks"], local["factor"]
        kick = injected(h, normal, factor)
        where = self._judged_at(position, kick)
        batch = data.take(picks)
        # The table has each row once, at its power; the weight N/m that makes up for those not drawn comes after.
        once = Batch(batch.rows, batch.weight / picks.weight)
        change = _row_scores(problem, where, once) - table[picks.position]
        drift = grad(problem.log_prior)(where) + picks.weight @ change + total
        after, shown = self._drifted(position, where, kick, drift, h, factor)
        table = torch.index_put(table, (picks.position,), change, accumulate=True)
        return (after, table, total + change.sum(0)), shown

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Store the chains and their tables."""
        return super().combine(shared, messages, weights) | {name: messages[name] for name in ("table", "table_sum")}


def _row_scores(problem: Problem, z: Tensor, batch: Batch) -> Tensor:
    """Gradient of each row's log-likelihood times its weight: (m, D)."""

    def weighted(at: Tensor, which: Tensor) -> Tensor:
        return (problem.log_parts(at, batch.rows)[1] * which).sum()

    each = torch.eye(len(batch.weight), dtype=z.dtype, device=z.device) * batch.weight
    scores: Tensor = problem.vmap(grad(weighted), (None, 0))(z, each)
    return scores
