"""Variational inference over directed graphs by PushSum: an agent needs to know only the number of its receivers.

Sources: Kempe, Dobra & Gehrke (2003), *Gossip-based computation of aggregate information*; Nedić & Olshevsky (2015),
*Distributed optimization over time-varying directed graphs*. The sites are those of Wang et al., Eq. (3).

    P_ij = 1 / d_j if i receives from j, or i = j;    d_j the number of receivers of j, including j
    s_i ← Σ_j P_ij s_j,    w_i ← Σ_j P_ij w_j,    q_i = s_i / w_i          on natural parameters

Columns of P sum to one: an agent distributes all it has, so that Σ_i s_i and Σ_i w_i are preserved, and each ratio
s_i / w_i tends to the mean of all contributions. With A agents, s_i increases by A δ_i if agent i's site changes by
δ_i. The mean is then the product of all sites in every round, and the fixed point is that of `P2PVI`.

`P2PVI` is also exact on directed graphs, but it uses the agents' centralities, v = v W, which depend on the whole graph
and change with every link that fails. In PushSum the sender keeps the share of a link that fails.

Letters: s `precision`, `eta`; w `mass`. P has the sparsity pattern of the graph's W; the weights of W are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.graph import Consensus, FixedGraph, Graph
from pyro_fed.graph import consensus_rounds as rounds_of_gap
from pyro_fed.graph.analysis import second_eigenvalue
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.ep.tilted import Newton, Received
from pyro_fed.infer.ep.tilted.base import numerics_of
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.peers.peer_sites import Agent, new_site, public_belief, sum_of_sites_is_improper
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PPushSum(PeerGaussian):
    """Peer-to-peer variational inference by PushSum: exact on directed graphs, without centralities.

    Args:
        gossip_steps: PushSum steps a round; None takes those that shrink disagreement by `gossip_tolerance`.
        gossip_tolerance: share of the agents' disagreement that a round leaves, if `gossip_steps` is None; None is
            0.01.
        start: "local": each agent's own Laplace approximation, with nothing exchanged; "prior": every belief begins as
            the prior, or its Laplace approximation; "auto" is "local". Newton's method over the graph is for W whose
            rows sum to one.

    References:
        Kempe, Dobra & Gehrke (2003). Nedić & Olshevsky (2015). Wang et al., Eq. (3).

    Example:
        >>> one_way = pf.graph.from_networkx(nx.cycle_graph(5, create_using=nx.DiGraph), mixing="uniform")
        >>> idata = pf.run(pf.infer.P2PPushSum(), fed, graph=one_way)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start not in ("auto", "local", "prior"):
            raise SettingError(
                f"P2PPushSum: start must be 'auto', 'local' or 'prior', received {self.start!r}: the others take W, "
                "whose rows sum to one; use P2PVI"
            )

    @property
    def begin(self) -> str:
        """The setting `start`, where "auto" is "local", each agent by itself."""
        return "local" if self.start == "auto" else self.start

    @property
    def needs_centrality(self) -> bool:
        return False

    def default_rounds(self, num_clients: int) -> int:
        """At most 100 rounds; the run stops when the agents agree and have converged."""
        return 100

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The number of steps as set, or by the second eigenvalue of P."""
        if self.gossip_steps is not None or not isinstance(graph, FixedGraph):
            return super().consensus_steps(graph, sleepers)
        rate = second_eigenvalue(sparse.csr_array(sending_shares(graph.matrix).T))
        return max(1, int(rounds_of_gap(1.0 - min(rate, 1.0), self.remaining_disagreement)))

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """Steps of P itself, because polynomials of W have another sparsity pattern."""
        return Consensus((0.0,) * self.consensus_steps(graph, sleepers))

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from flat beliefs, or from the prior at every agent, each with mass one."""
        shared, local = super().init(problem, num_clients, generator, start)
        one = torch.ones(num_clients, dtype=torch.float64, device=shared["eta"].device)
        return shared | {"mass": one}, local | {"agents": num_clients * one}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Solve Eq. (3) at each agent's ratio; the message is what the agent distributes."""
        q, agent, agents, mass = _ratio(shared), entries_as(Agent, local), local["agents"], shared["mass"]
        prior_share = self.site_prior_share(agent.prior_share, 1.0 / agents)
        had_improper_sum = sum_of_sites_is_improper(q, agent.site)
        numerics, received = numerics_of(self, problem, prior_share), Received(q, q / agent.site)
        tilted, is_proper = new_site(
            Newton(), problem, numerics, received, data, noise, agent, agents, had_improper_sum
        )
        change = tilted.site / agent.site
        belief, fraction = public_belief(q, change ** (agents / mass), is_proper & q.is_proper(), self.damping)
        new_agent = agent._replace(site=agent.site * change**fraction, prior_share=prior_share)
        figures = {"fraction": fraction, "mass": mass, **self.traces(q)}
        return {**as_state(belief**mass), "mass": mass}, {**as_entries(new_agent), "agents": agents}, figures

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to ratios far above the other agents', or to masses that are not positive."""
        outlying = message_limits.outlying_sites(as_state(_ratio(messages)))
        return {**outlying, "a mass that is not positive": messages["mass"] <= 0}

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """Sum the shares that each agent receives: P s and P w."""
        if weights.shape[0] != weights.shape[1]:
            raise SettingError(
                "P2PPushSum: agents in separate processes know only their own row of the graph, and not the number of "
                "receivers of their neighbours; use P2PVI there"
            )
        shares = sending_shares(weights)
        return {name: mix(shares, value) for name, value in messages.items()}

    def witness(self, before: State, after: State) -> State:
        return super().witness(as_state(_ratio(before)), as_state(_ratio(after)))

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return super().sample(as_state(_ratio(shared)), num_draws, generator)

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        return super().log_density(as_state(_ratio(shared)), draws)


def _ratio(state: State) -> Gaussian:
    """q = s / w, (A,)."""
    return gaussian(state) ** (1.0 / state["mass"])


def sending_shares(weights: Any) -> sparse.csr_array:
    """P (C, C), equal shares for an agent's receivers and itself, from the sparsity pattern of W (C, C)."""
    receives = sparse.csr_array(weights != 0).astype(np.float64)
    receives = sparse.csr_array((receives + sparse.eye_array(receives.shape[0], format="csr")) != 0).astype(np.float64)
    receivers = np.asarray(receives.sum(axis=0)).ravel()
    return sparse.csr_array(receives @ sparse.diags_array(1.0 / receivers))
