"""Peer-to-peer inference on a finite set of parameters: categorical beliefs, Bayes' rule in closed form.

Source: Wang et al., *Peer-to-peer variational federated learning over arbitrary graphs*, Eq. (4), (6), Theorem 1,
Corollary 2.

    b_i(θ) ∝ q_i(θ) Π_rows f(y | θ)^(1/u_i),     q_i(θ) ∝ Π_j b_j(θ)^(W_ij),     θ in Θ = {θ_1, ..., θ_M}

As published, u_i = 1: a datum of agent i enters every belief with weight v_i, v = v W. Beliefs in wrong parameters fall
as exp(-T K(Θ)), Eq. (5). On a complete graph of A agents, W = 1/A, Bayes' rule has the likelihood of all data to the
power 1/A. By default u_i = v_i: each datum counts once, and all agents converge to the posterior on Θ.

Letters: log q `log_belief` (A, M), Θ `candidates` (A, M, D) on the unconstrained scale, the same at all agents.

The user may set Θ and its prior probabilities. By default Θ contains draws from the model's prior, common to all
agents, and the posterior on them is importance sampling from the prior. Each row is used once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State, Tempered
from pyro_fed.algorithm.message_limits import IMPOSSIBLE
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import (
    check_at_least,
    check_between,
    check_choice,
    check_positive,
    check_probabilities,
)
from pyro_fed.density.derivatives import clients_log_likelihoods
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import DataError, SettingError
from pyro_fed.graph import Graph
from pyro_fed.graph.base import require_centrality
from pyro_fed.graph.consensus import MAX_TOLERANCE
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.peers.peer_sites import Turn
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.importance import MIN_SMOOTHED_DRAWS


class Beliefs(NamedTuple):
    """Each agent's log q (A, M) and Θ (A, M, D)."""

    log_belief: Tensor
    candidates: Tensor


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PFinite(Tempered, OnGraph):
    """Peer-to-peer inference on a finite set of parameters, each row used once.

    Args:
        candidates: Θ: latent site → its values (M, ...), constrained; None takes draws from the prior.
        num_candidates: M, number of draws from the prior; only without `candidates`.
        probabilities: prior of the candidates, M positive numbers that sum to one; None makes them equal.
        weighting: "exact" (each datum counts once on any graph) or "paper" (it counts with its agent's centrality).
        batch_size: rows per round, in order; None takes all in the first.
        gossip_steps: consensus steps of W per round; None takes as many as shrink disagreement to `gossip_tolerance`.
        gossip_tolerance: share of the agents' disagreement that a round's consensus leaves, if `gossip_steps` is None.
        tolerance: the run has converged when all rows are used, and no probability changes by more in a round or
            differs by more between two agents.

    References:
        Wang et al., Peer-to-peer variational federated learning over arbitrary graphs, Eq. (4) and (6).

    Example:
        >>> theta = torch.linspace(-1, 1, 21)
        >>> idata = pf.run(pf.papers.P2PFinite(candidates={"theta": theta}), fed, graph=pf.graph.ring(5))
    """

    draws_are: ClassVar[str] = "agents"

    candidates: Mapping[str, Any] | None = None
    num_candidates: int = 1000
    probabilities: tuple[float, ...] | None = None
    weighting: Literal["exact", "paper"] = "exact"
    batch_size: int | None = None
    gossip_steps: int | None = None
    gossip_tolerance: float = 1e-2
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_candidates")
        check_at_least(self, 1, "batch_size", "gossip_steps", allow_none=True)
        check_choice(self, "weighting", ("exact", "paper"))
        check_between(self, "gossip_tolerance", 0, MAX_TOLERANCE)
        check_positive(self, "tolerance", "temperature")
        if self.gossip_steps is not None:
            refuse_unused(self, f"gossip_steps={self.gossip_steps} fixes them; leave that out", "gossip_tolerance")
        if self.candidates is not None:
            refuse_unused(self, "the candidates are given", "num_candidates")
        if self.probabilities is not None and self.candidates is None:
            raise SettingError("P2PFinite: probabilities need candidates; draws from the prior are equally likely")
        if self.probabilities is not None:
            check_probabilities(self, "probabilities")

    # -- over the graph -------------------------------------------------------------------------------------
    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The number of steps that is set, or that shrinks disagreement enough; one if groups of agents take turns."""
        if self.weighting == "exact":
            require_centrality(graph, type(self).__name__, sleepers)
        if self.gossip_steps is not None:
            return self.gossip_steps
        return 1 if graph.active(0) is not None else max(1, int(graph.consensus_rounds(self.gossip_tolerance)))

    # -- the rounds -----------------------------------------------------------------------------------------
    def default_rounds(self, num_clients: int) -> int:
        """At most 100 rounds; the run ends when all rows are used and the agents agree."""
        return 100

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent at the candidates' prior."""
        points = self._points(problem, generator)
        prior = torch.tensor(self.probabilities or [1 / len(points)] * len(points), dtype=torch.float64)
        if len(prior) != len(points):
            raise SettingError(f"P2PFinite: {len(points)} candidates need as many probabilities, received {len(prior)}")
        beliefs = Beliefs(*(part.expand(num_clients, *part.shape).clone() for part in (prior.log(), points)))
        return beliefs._asdict(), {"next_row": torch.zeros(num_clients, dtype=torch.int64)}

    def _points(self, problem: Problem, generator: torch.Generator) -> Tensor:
        """Θ, (M, D)."""
        if self.candidates is None:
            return problem.sample_prior(self.num_candidates, generator)
        values = {name: torch.as_tensor(value).to(problem.dtype) for name, value in self.candidates.items()}
        sizes = {name: len(value) for name, value in values.items()}
        if len(set(sizes.values())) != 1 or set(values) != set(problem.sites):
            raise DataError(
                f"P2PFinite: candidates need as many values of each of the sites {list(problem.sites)}, "
                f"received {sizes}"
            )
        each = [{name: value[i] for name, value in values.items()} for i in range(len(next(iter(values.values()))))]
        return torch.stack([problem.unconstrain(value) for value in each])

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Update by Eq. (6), as long as there are unused rows."""
        position, (belief, candidates) = local["next_row"], entries_as(Beliefs, shared)
        rows_left = data.num_rows - position
        if bool((rows_left > 0).any()):
            rows, position = Turn(position).rows(data, self.batch_size or data.row_index.shape[1])
            log_lik = clients_log_likelihoods(problem, candidates, rows)
            v = shared["centrality"][:, None] if self.weighting == "exact" else 1.0
            belief = belief + log_lik.nan_to_num(nan=IMPOSSIBLE, neginf=IMPOSSIBLE).clamp_min(IMPOSSIBLE) / v
        effective = 1 / torch.softmax(belief, -1).square().sum(-1)
        figures = {"rows_left": (data.num_rows - position).double(), "effective": effective}
        return {"log_belief": torch.log_softmax(belief, -1)}, {"next_row": position}, figures

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return {}

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        return {"log_belief": torch.log_softmax(mix(weights, messages["log_belief"]), -1)}

    # -- what the record shows ------------------------------------------------------------------------------
    def witness(self, before: State, after: State) -> State:
        """Each agent's beliefs, and their largest change."""
        old, new = before["log_belief"].exp(), after["log_belief"].exp()
        return {"moved": (new - old).abs().amax(-1), "belief": new}

    def figures_of_witness(self, told: State) -> dict[str, float]:
        """The largest change, and the largest difference between agents."""
        differences = told["belief"].amax(0) - told["belief"].amin(0)
        return {"change": float(told["moved"].amax()), "disagreement": float(differences.amax())}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return self.figures_of_witness(self.witness(before, after))

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether beliefs have stopped moving and agree; unused rows would move them."""
        return max(figures[-1]["change"], figures[-1]["disagreement"]) < self.tolerance

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Each agent's draws of Θ, (A, num_draws, D)."""
        belief, candidates = entries_as(Beliefs, shared)
        chosen = torch.multinomial(belief.exp(), num_draws, replacement=True, generator=generator)
        return candidates.gather(1, chosen[..., None].expand(-1, -1, candidates.shape[-1]))

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about the published weighting, unused rows, and prior draws that miss the posterior."""
        notes, rows_left, effective = list[Finding](), record.last("rows_left"), record.last("effective")
        if self.weighting == "paper":
            notes.append(sentences.published_weighting_of_finitely_many())
        if len(rows_left) and rows_left.sum() > 0:
            cure = "run more rounds, or take larger batches"
            notes.append(sentences.rows_never_used(rows=int(rows_left.sum()), cures=[cure]))
        if self.candidates is None and len(effective) and effective.min() < MIN_SMOOTHED_DRAWS:
            notes.append(
                sentences.candidates_miss_the_posterior(candidates=self.num_candidates, worth=float(effective.min()))
            )
        return notes
