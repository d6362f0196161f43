"""Langevin steps of the server with the clients' quantised scores, which take one byte per number.

Source: Vono, Plassier, Durmus, Dieuleveut & Moulines (2022), *QLSD: quantised Langevin stochastic dynamics for Bayesian
federated learning*, Algorithms 1 and 2; the quantiser is QSGD's (Alistarh et al. 2017).

    client k:   v_k = ∇ log p_k(θ) - m_k,    sends C(v_k),    m_k ← m_k + a C(v_k)                           (1)
    server:     S = M + K/C Σ_k C(v_k),      M ← M + a Σ_k C(v_k)                                            (2)
                θ' = θ + h/2 (∇ log p_0(θ) + S/α) + √h ξ,    ξ ~ N(0, I)                                     (3)
    C(v)_j = |v| sign(v_j) floor(s |v_j| / |v| + u_j) / s,    u_j ~ U(0, 1)                                  (4)

C is unbiased, and its variance is at most ω |v|², ω = min(D / s², √D / s). M is the sum of all m_k, so that S is
unbiased too. If clients differ, their scores at the posterior's mode are far from zero, and the noise of C is large.
The memory m_k follows the client's mean score, so that only the difference is quantised. `memory=False` is Algorithm 1
of the source, a = 0. The source's step is h/2.

Deviations: clients compute the scores of all their rows, which is the source's case without minibatches, so that its
reference points (Algorithm 2's ζ) are not needed; a = 1/(1 + ω), the largest rate of its theory; there are M chains,
each with its own quantiser and memory. The noise of C widens the draws by about h/4 Σ_k E|C(v_k) - v_k|² of h.

Letters: s `levels`, m and M `memory`, a `rate`; the others are those of `summed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_between
from pyro_fed.density.derivatives import clients_likelihood_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.langevin.summed import SummedChains, SummedState
from pyro_fed.infer.sites.records import as_entries, entries_as


class QuantisedState(NamedTuple):
    """The server's state."""

    summed: SummedState  # the chains
    memory: Tensor  # M, (M, D), the sum of the clients'


class Quantised(NamedTuple):
    """Quantised vectors (..., D): |v| (...), and signed levels, int8 (..., D)."""

    norm: Tensor
    level: Tensor


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class QLSD(SummedChains):
    """Quantised Langevin stochastic dynamics: chains with scores that clients send in one byte per number.

    Coordinates are unconstrained. Posterior SDs of parameters should be similar, as with standardised covariates.

    Args:
        levels: s, of the quantiser, at most 127: fewer make more noise for the same bytes, and messages that compress
            better.
        memory: quantise what scores differ by from the client's usual one, as QLSD++ does; False is QLSD.

    References:
        Vono, Plassier, Durmus, Dieuleveut & Moulines (2022), QLSD: quantised Langevin stochastic dynamics for Bayesian
        federated learning.

    Example:
        >>> idata = pf.run(pf.infer.QLSD(step_size=0.01), fed)
    """

    levels: int = 127
    memory: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, "levels", 1, 127, "[]")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of the prior, with empty memories."""
        shared, _ = super().init(problem, num_clients, generator, start)
        none = torch.zeros_like(shared["position"])
        return {**shared, "memory": none}, {"memory": none.expand(num_clients, *none.shape).clone()}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """u, (1, M, D): a round is one step."""
        return {"uniform": torch.rand(1, self.num_chains, problem.dim, generator=generator, dtype=problem.dtype)}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """The clients' quantised scores at each chain, less their memories, Eq. (1)."""
        scores = clients_likelihood_scores(problem, shared["position"], data)
        sent = self.quantised(scores - local["memory"], noise["uniform"][0])
        return sent._asdict(), {"memory": local["memory"] + self.rate(problem.dim) * self.restored(sent)}, {}

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return message_limits.outlying_clients(message_limits.sizes(self._scores_of(messages)), "score")

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take a step of Eq. (2) and (3)."""
        (state, memory), sent = entries_as(QuantisedState, shared), self._scores_of(messages).sum(0)
        scale, h = int(state.num_clients) / len(messages["norm"]), float(state.step_size)
        summed = self.after_step(state, memory + scale * sent, h, h**0.5 * self.normal(state))
        return as_entries(QuantisedState(summed, memory + self.rate(memory.shape[-1]) * sent))

    def quantised(self, vector: Tensor, uniform: Tensor) -> Quantised:
        """C(v) of Eq. (4), of vectors (..., D)."""
        norm = vector.norm(dim=-1)
        part = vector.abs() / norm.where(norm > 0, 1.0).unsqueeze(-1)
        level = (self.levels * part + uniform).floor().clamp(max=self.levels)
        return Quantised(norm, (vector.sign() * level).to(torch.int8))

    def restored(self, sent: Quantised) -> Tensor:
        """Quantised vectors as vectors."""
        return sent.norm.unsqueeze(-1) * sent.level.to(sent.norm) / self.levels

    def rate(self, dim: int) -> float:
        """a = 1/(1 + ω); 0 without memory."""
        return float(self.memory) / (1 + min(dim / self.levels**2, math.sqrt(dim) / self.levels))

    def _scores_of(self, messages: State) -> Tensor:
        """The vectors that clients have sent, (C, M, D)."""
        return self.restored(entries_as(Quantised, messages))
