"""Base classes of peer-to-peer algorithms with Gaussian beliefs: states, consensus and disagreement.

Source: Wang et al., *Peer-to-peer variational federated learning over arbitrary graphs*, Eq. (4) and (8);
Kia et al., *Tutorial on dynamic average consensus* (2019), for tracking.

    q_i ← Σ_j W_ij b_j        on natural parameters, Eq. (8)

with q_i the agents' beliefs (`shared`), b_i the public beliefs (messages), and t_i the sites (`peer_sites.Agent`).

**Every change counts once.** With v(t) = v(t+1) W(t), consensus preserves Σ_i v_i q_i, so a change that agent i adds to
its belief enters every belief with weight v_i(t). An agent whose site changes by δ_i therefore adds δ_i / v_i(t):

    b_i = q_i + (t_i^new - t_i^old) / v_i(t)     ⟹     Σ_i v_i(t) q_i(t) = Σ_i t_i     in every round

which is dynamic average consensus. Beliefs start flat (zero), so that the sum is exactly that of the sites. The prior
is divided among the agents: agent i's site is that of  log p(D_i | θ) + c_i log p(θ)  with c_i = v_i at the agent's
first round, Σ_i c_i = 1. An agent needs to know only its own centrality.

`peer_sites` computes sites and public beliefs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import chosen_setting, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.errors import GraphError
from pyro_fed.graph import Consensus, Graph
from pyro_fed.graph.base import require_centrality
from pyro_fed.graph.consensus import MAX_TOLERANCE
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.peers import findings
from pyro_fed.infer.peers.consensus_laplace import ConsensusLaplace
from pyro_fed.infer.peers.local_laplace import gaussian_prior, or_infinity, range_over_agents, repeated
from pyro_fed.infer.peers.peer_sites import Agent
from pyro_fed.infer.sites.gaussian_sites import (
    PRIOR_DRAWS,
    SpreadGaussian,
    absolute,
    add_batch_axis,
    as_state,
    at_mean,
    fit_prior,
    flat_site,
    gaussian,
    largest_move,
    moments_of,
    where,
)
from pyro_fed.infer.sites.records import as_entries
from pyro_fed.ops.gaussian import Gaussian

#: Tolerance of Newton's method before beliefs are mixed, in SDs; later rounds replace the sites. On the way to a mode
#: at infinity steps shorten in SDs, and a tolerance of half an SD would accept an improper posterior.
START_TOLERANCE = 1e-2
#: Default share of the agents' disagreement that remains after a round's consensus.
GOSSIP_TOLERANCE = 1e-2
#: The same if rounds are accelerated.
ACCELERATED_GOSSIP_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class PeerBeliefs(Algorithm, OnGraph):
    """Beliefs of an exponential family, whose natural parameters are mixed over a graph.

    Args:
        tolerance: the run has converged when in a round no agent's mean moves by more than this many SDs and no SD by
            more than this share, and agents differ by no more.
        damping: fraction of a site's change in a round, in (0, 1].
        gossip_steps: consensus steps of W a round, as published; None takes the fewest that shrink disagreement by
            `gossip_tolerance`, of a polynomial of W on a fixed graph (one, if different groups are awake in each
            round).
        gossip_tolerance: share of the agents' disagreement that a round's consensus leaves, if `gossip_steps` is
            None; None is 0.01, or 1e-4 if rounds are accelerated (see `pf.infer.update.Newton`).
    """

    draws_are: ClassVar[str] = "agents"

    tolerance: float = 1e-4
    damping: float = 1.0
    gossip_steps: int | None = None
    gossip_tolerance: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]  # of the other base of a subclass
        check_positive(self, "tolerance")
        check_between(self, "damping", 0, 1)
        if self.gossip_tolerance is not None:
            check_between(self, "gossip_tolerance", 0, MAX_TOLERANCE)
        check_at_least(self, 1, "gossip_steps", allow_none=True)
        if self.gossip_steps is not None:
            refuse_unused(
                self,
                f"gossip_steps={self.gossip_steps} already determines the number of steps; remove it",
                "gossip_tolerance",
            )

    @property
    def accelerates(self) -> bool:
        """Whether sites are taken at extrapolated points, which needs complete consensus."""
        return False

    @property
    def remaining_disagreement(self) -> float:
        """The share of the agents' disagreement that remains after a round; less with acceleration by default."""
        if self.gossip_tolerance is not None:
            return self.gossip_tolerance
        return ACCELERATED_GOSSIP_TOLERANCE if self.accelerates else GOSSIP_TOLERANCE

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The number of steps; exactness needs a centrality that absent agents and failures do not change."""
        if self.needs_centrality:
            require_centrality(graph, type(self).__name__, sleepers)
        grouped = graph.active(0) is not None
        if self.gossip_steps is None:
            return 1 if grouped else graph.consensus(self.remaining_disagreement).steps
        if grouped and self.gossip_steps > 1:
            raise GraphError(f"gossip_steps must be 1 where groups take turns, received {self.gossip_steps}")
        return self.gossip_steps

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The fewest steps that shrink disagreement by the tolerance; or `gossip_steps` steps of W itself."""
        steps = self.consensus_steps(graph, sleepers)
        if self.gossip_steps is None and graph.active(0) is None:
            return graph.consensus(self.remaining_disagreement)
        return Consensus((0.0,) * steps)

    @property
    def needs_centrality(self) -> bool:
        """Whether the result depends on a correct centrality."""
        return True

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """Mix natural parameters as in Eq. (8): q_i = Σ_j W_ij b_j."""
        return {name: mix(weights, value) for name, value in messages.items()}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The largest move of an agent's mean (in SDs) or log SD, and the largest distance between agents."""
        return self.figures_of_witness(self.witness(before, after))

    def figures_of_witness(self, witness: State) -> dict[str, float]:
        """The largest of the moves, and the largest distance between the beliefs."""
        mean, sd = witness["mean"], witness["sd"]
        disagreement = torch.maximum(range_over_agents(mean) / sd.mean(0), range_over_agents(sd.log())).amax()
        return {"change": or_infinity(witness["moved"].amax()), "disagreement": or_infinity(disagreement)}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return max(figures[-1]["change"], figures[-1]["disagreement"]) < self.tolerance

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about agents that disagree at the end, and about sites that could not change."""
        return findings.disagreement(record) + findings.stalled_agents(record)


@dataclass(frozen=True, kw_only=True)
class PeerGaussian(PeerBeliefs, SpreadGaussian):
    """Gaussian beliefs that are mixed over a graph.

    Args:
        start: "consensus": a Laplace approximation of all data first, by Newton's method over the graph; "local": each
            agent's own, with nothing exchanged, which needs more rows than parameters at every agent; "prior": every
            belief begins as the prior, or its Laplace approximation; "draw": with the prior's SDs about one draw from
            it, common to all (a neural network's prior mean is a saddle); "auto": "consensus", or "local" if groups of
            agents are awake in turn.
        trace: keep every agent's belief of every round (means and SDs) in the record, for `pf.plots.plot_consensus`.
    """

    symmetric: ClassVar[frozenset[str]] = frozenset({"precision"})

    start: Literal["auto", "consensus", "local", "prior", "draw", "fedavg"] = "auto"
    trace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "start", ("auto", "consensus", "local", "prior", "draw", "fedavg"))

    # -- over the graph -------------------------------------------------------------------------------------
    def warm_start(self, problem: Problem) -> Algorithm | None:
        """Newton's method over the graph, unless each agent starts by itself."""
        if chosen_setting(self, "start") != "consensus":
            return None
        return ConsensusLaplace(
            newton=FedLaplace(
                covariance=self.structure,
                curvature=self.curvature,
                tolerance=START_TOLERANCE,
            )
        )

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm on a graph."""
        if graph.active(0) is not None and self.start == "consensus":
            raise GraphError(
                f"{type(self).__name__}: start='consensus' needs sums over all agents, which take many rounds where "
                "groups take turns: use start='auto' or 'local'"
            )
        return self

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from flat beliefs and sites, or from the states of the previous phase."""
        if start is not None and _has_agents(start):
            return dict(start.shared), dict(start.local)
        flat = beliefs = anchor = flat_site(problem, self.structure, num_clients)
        if start is None:
            point = problem.init(PRIOR_DRAWS, generator).median(0).values.double().expand(num_clients, -1)
            if problem.traits.kinked_prior:  # no agent has a Laplace approximation
                anchor = repeated(add_batch_axis(fit_prior(self, problem, generator)), num_clients)
        else:
            point, anchor = start.local["point"], gaussian(start.local)
            if bool((back := start.local["back"].bool()).any()):  # the point is not a mode
                around = at_mean(absolute(anchor)[0], point)
                anchor = where(back, self.narrowed(problem, around), anchor)
        if self.starts_at_prior:
            prior = gaussian_prior(self, problem, self.start == "draw", generator)
            beliefs = repeated(prior, num_clients)
        agents = Agent(flat, torch.zeros_like(flat.eta[:, 0]), anchor, point)
        shared, local = (
            {name: part.clone() for name, part in s.items()} for s in (as_state(beliefs), as_entries(agents))
        )
        return shared, local

    @property
    def starts_at_prior(self) -> bool:
        """Whether beliefs start as the prior, so that sites contain no share of it."""
        return self.start in ("prior", "draw")

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return message_limits.outlying_sites(messages)

    # -- sites ----------------------------------------------------------------------------------------------
    def site_prior_share(self, share: Tensor, centrality: Tensor) -> Tensor:
        """c_i, (C,), the prior's share in each agent's site from this round on; 0 if beliefs contain the prior."""
        if self.starts_at_prior:
            return torch.zeros_like(share)
        return torch.where(share > 0, share, centrality)

    # -- what the record shows ------------------------------------------------------------------------------
    def traces(self, q: Gaussian) -> State:
        """Means and SDs at the beginning of the round, if `trace` is set."""
        if not self.trace:
            return {}
        mean, sd = moments_of(q)
        return {"belief_mean": mean, "belief_sd": sd}

    def witness(self, before: State, after: State) -> State:
        """Each agent's own move, and its means and SDs."""
        old, (mean, sd) = (moments_of(gaussian(state)) for state in (before, after))
        return {"moved": largest_move(old, (mean, sd)), "mean": mean, "sd": sd}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return gaussian(shared).require_proper("the agents' beliefs").even_sample(num_draws, generator).transpose(0, 1)


def _has_agents(start: Start) -> bool:
    """Whether a start has the states of agents (`peer_sites.Agent`), not those of a Laplace approximation."""
    return "anchor_eta" in start.local
