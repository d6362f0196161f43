"""The Laplace approximation without a server: Newton's method whose sums are computed by consensus.

Every agent runs the server's part of `FedLaplace` by itself, on sums over all agents that it obtains by average
consensus. Agent i contributes its message m_i divided by its centrality v_i. After enough steps every agent has
Σ_i v_i (m_i / v_i) = Σ_i m_i, up to `gossip_tolerance` of the largest. All agents then make the same decision.

Curvatures are sent in single precision after a round's first step. Their rounding must not move the point where the
Newton step is zero. Agents therefore send the points a_i of their sites, which are equal up to rounding, and the scores
g_i = η_i - P_i a_i there. With ā the mean of the points, Σ_i η_i = Σ_i g_i + P ā for the agent's P; a rounding error of
P changes the step by the same relative amount, and leaves it zero where the scores cancel.

`P2PVI` starts here by default: expectations under a belief need a proper belief, and an agent's own likelihood may be
unbounded (as many parameters as rows) where the pooled one is not. Each agent has the sums (`Sums`) and the state of
`FedLaplace`'s server (`local`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State
from pyro_fed.codes import cures
from pyro_fed.conventions.nested_settings import chosen_setting
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.graph import Consensus, Graph
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.laplace.laplace_point import Line, Server
from pyro_fed.infer.peers.p2p_fedavg import PeerBurnIn
from pyro_fed.infer.sites.gaussian_sites import add_batch_axis, as_state, flat_site, gaussian
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.entries import with_trailing_axes
from pyro_fed.ops.gaussian import Gaussian

#: Finite stand-in for a log-likelihood of minus infinity and for an unknown step length, since infinities cannot be
#: mixed: so low that the smallest share of it shows in a mean.
UNKNOWN_LENGTH, LOWEST_LOG_LIK = 1e6, -1e200
#: Number of agents whose site cannot be used, before the first round.
NO_SITES_YET = -1.0


class Sums(NamedTuple):
    """Each agent's estimates of the sums over all agents, (A, ...); in a message, the agent's terms."""

    values: Tensor  # log-likelihoods on the line, (A, L)
    unusable: Tensor  # number of agents whose site cannot be used, (A,)
    precision: Tensor  # Σ_i P_i
    eta: Tensor  # Σ_i g_i, (A, D)
    aim: Tensor  # ā, (A, D)
    decrement: Tensor  # length of the next Newton step, in SDs, (A,)

    def product(self) -> Gaussian:
        """The product of the sites, from the sum of their scores at the mean of the points."""
        q = gaussian({"precision": self.precision, "eta": self.eta})
        return type(q)(q.precision, q.score(-self.aim))


@dataclass(frozen=True, kw_only=True)
class ConsensusLaplace(Algorithm, OnGraph):
    """Federated Newton's method over a graph."""

    remedy: ClassVar[str] = cures.OF_LAPLACE

    draws_are: ClassVar[str] = "agents"
    needs_all: ClassVar[bool] = True
    symmetric: ClassVar[frozenset[str]] = frozenset({"precision"})
    coarse: ClassVar[frozenset[str]] = frozenset({"precision"})

    newton: FedLaplace = field(default_factory=FedLaplace)  # settings of Newton's method
    gossip_tolerance: float = 1e-10  # disagreement that is left in the sums of a round, relative to what it was

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        return self.consensus(graph, sleepers).steps

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The consensus with the fewest messages; if agents may be absent, steps that preserve the sums."""
        return graph.consensus(self.gossip_tolerance) if sleepers else graph.sums(self.gossip_tolerance)

    def default_rounds(self, num_clients: int) -> int:
        return self.newton.default_rounds(num_clients)

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """Averaging over the graph if Newton's method starts with it; the agents' points are equal up to rounding."""
        if chosen_setting(self.newton, "start") != "fedavg":
            return None
        return PeerBurnIn(gossip_tolerance=self.gossip_tolerance)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent at the same point, with unknown sums."""
        server, _ = self.newton.init(problem, 1, generator, None)
        local = {name: value.expand(num_clients, *value.shape).clone() for name, value in server.items()}
        if start is not None:
            at = start.shared["point"].to(local["point"])
            local |= {name: at.clone() for name in ("point", "best_point", "rough_point")}
        site = flat_site(problem, self.newton.structure, num_clients)
        none = site.eta.new_zeros(num_clients)
        values = none[:, None].expand(-1, len(self.newton.fractions)).clone()
        aim = torch.zeros_like(site.eta)
        return Sums(values, none + NO_SITES_YET, site.precision, site.eta, aim, none + UNKNOWN_LENGTH)._asdict(), local

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take the server's decision at each agent from its sums, then evaluate at the chosen point."""
        sums = entries_as(Sums, shared)
        states = []
        for i in range(len(data.num_rows)):
            agent_state = {name: value[i] for name, value in local.items()}
            states.append(self._decide(Sums(*(part[i] for part in sums)), agent_state))
        server = {name: torch.stack([state[name] for state in states]) for name in local}
        line = entries_as(Line, server)
        server |= self.newton.prior_on_line(problem, line)
        site, _, info = self.newton.local_step(problem, line._asdict(), {}, data, noise)

        def over_centrality(part: Tensor) -> Tensor:
            """m_i / v_i, whose consensus is Σ_i m_i."""
            return part.double() / with_trailing_axes(shared["centrality"], part)

        message = Sums(
            values=over_centrality(site["values"].clamp_min(LOWEST_LOG_LIK)),
            unusable=over_centrality(~site["usable"]),
            precision=over_centrality(site["precision"]),
            eta=over_centrality(gaussian(site).score(line.end)),
            aim=line.end.double(),
            decrement=server["decrement"].clamp_max(UNKNOWN_LENGTH),
        )
        return message._asdict(), server, info

    def _decide(self, sums: Sums, server: State) -> State:
        """The server's part of a round at one agent; nothing changes before the first sums."""
        if float(sums.unusable) == NO_SITES_YET:
            return server
        usable = sums.unusable[None] < 0.5
        total = {"values": sums.values[None], "usable": usable, **as_state(add_batch_axis(sums.product()))}
        return as_entries(self.newton.next_server(entries_as(Server, server), total))

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return message_limits.outlying_sites(messages)

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        return {name: mix(weights, value) for name, value in messages.items()}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return self.figures_of_witness(self.witness(before, after))

    def witness(self, before: State, after: State) -> State:
        return {"decrement": entries_as(Sums, after).decrement}

    def figures_of_witness(self, witness: State) -> dict[str, float]:
        return {"change": float(witness["decrement"].max())}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return self.newton.converged(figures)

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return entries_as(Sums, shared).product().even_sample(num_draws, generator).transpose(0, 1)
