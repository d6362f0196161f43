"""SAGA-LD: Langevin dynamics on the pooled data, with a stored gradient for every row.

Source: Dubey et al. (2016), *Variance reduction in stochastic gradient Langevin dynamics*, Algorithm 1.

    v(θ_t) = ∇ log p(θ_t) + N/m Σ_{i in I_t} [∇ log p(x_i | θ_t) - g_i] + Σ_i g_i
    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)
    g_i ← ∇ log p(x_i | θ_t)    for the rows i in I_t

The estimate v is `gradients.SagaScore`, the step `integrator.Integrator`. The table starts with the gradients at the
chain's start.

Letters: g `table` (N, D) of each chain, Σ g `table_sum`, I_t `picks`, m `batch_size`; the others as in
`langevin.langevin`.

The minibatch noise is that of the gradients' changes since their rows were last drawn. It shrinks with the step,
without SVRG-LD's gradient of all rows in every epoch. Each chain stores N × D numbers. The deviations are those of
`langevin.langevin` (preconditioner, midpoint, derived step), all off in `inference/saga_ld.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.gradients import SagaScore, Table, weighted_row_scores
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.visits import Arrival, ClientState
from pyro_fed.infer.sites.records import entries_as


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SAGALD(Langevin):
    """SAGA-LD: SGLD whose minibatches are corrected by the gradient that each row had when it was last drawn.

    Args:
        batch_size: m, rows a step, each minibatch drawn anew, no row twice in one, weighted to all; from as many rows
            on as there are, all are taken.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others; or, on a model, tables
            of more than 500 million numbers.

    References:
        Dubey, Reddi, Póczos, Smola, Xing & Williamson (2016), Algorithm 1.

    Example:
        >>> idata = pf.run(pf.infer.SAGALD(), fed)
        >>> step = pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False)
        >>> idata = pf.run(pf.infer.SAGALD(step=step, surrogates=None), fed)
    """

    pooled: ClassVar[bool] = True
    without: ClassVar[Mapping[str, str]] = {
        "control_variate": "the gradients that are kept of every row are one; SGLD takes it",
        "minibatches": "no row may stand twice in a minibatch, as at the seams of permutations; SGLD takes it",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is None:
            raise SettingError("SAGALD: batch_size=None takes all rows, and there is nothing to correct; use SGLD")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of p(θ) Π q_s(θ), or of the prior, with empty tables."""
        shared, local = super().init(problem, num_clients, generator, start)
        room = shared["position"].new_zeros(self.num_chains, problem.num_rows, problem.dim)
        return shared | Table(room, torch.zeros_like(shared["position"]))._asdict(), local

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download(shared, clients) | _tables_of(shared)._asdict()

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Make T steps of each chain; in the first round, compute the table of its start."""
        if self.takes_all_rows(data):  # there is nothing to correct
            message, news, figures = super().local_step(problem, shared, local, data, noise)
            return message | _tables_of(shared)._asdict(), news, figures
        arrival, client = entries_as(Arrival, shared), entries_as(ClientState, local)
        memory = _tables_of(shared)
        if not bool(client.ready.all()):
            table = problem.mapped(weighted_row_scores, (0, BATCHES), calls=0)(arrival.position, data.full_batch())
            memory = Table(table, table.sum(1))
        client, news = self.with_entries_of_first_visit(problem, arrival, client, data)
        score = SagaScore(client.inverse_f)
        end, visit, figures = self.visits(data).one_round(problem, arrival, client, score, data, noise, memory)
        return visit._asdict() | end.memory._asdict(), news, figures

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return super().combine(shared, messages, weights) | _tables_of(messages)._asdict()


def _tables_of(state: State) -> Table:
    """The tables of a state or a message, (C, ...)."""
    return Table(*(state[name] for name in Table._fields))
