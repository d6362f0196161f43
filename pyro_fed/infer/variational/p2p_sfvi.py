"""Structured variational inference over a graph: agents fit any Pyro guide without a server.

    r_i = Σ_rows ∇_z log p_i(z_is) / v_i,   z_is = g_{φ_i}(ε_s)          the same ε_s at all agents, from the run's seed
    m_i ← m_i + r_i - r_i'                                               r_i' of the previous round, zero in the first
    (m_i, φ_i) ← Σ_j W_ij (m_j, φ_j)                                     repeated until disagreement is small enough
    φ_i ← φ_i + Adam(∇_φ E_q[log p_0 - log q_φ] + 1/S Σ_s (∂z_is/∂φ)' m_is)

Source: `sfvi` for the step, Wang et al., *Peer-to-peer variational federated learning over arbitrary graphs*, Eq. (8),
for the consensus. v is the centrality of W, v'W = v', so that the mean that agents approach, Σ_i v_i m_i = Σ_i v_i r_i,
is the sum of all agents' scores: on a complete graph a round equals one with a server.

On other graphs consensus leaves a share `gossip_tolerance` of the differences between the agents' m. Scores r of agents
with different data differ far more than by the noise of the draws, and always in the same direction. Each agent's Adam
divides them by its own scale, so that steps by the remaining differences would end elsewhere, on large data by several
SDs. Therefore m tracks the sum from round to round (Zhu & Martínez 2010, *Discrete-time dynamic average consensus*; as
gradients in Nedić, Olshevsky & Shi 2017): constant differences cancel in r_i - r_i'.

P2PVI mixes Gaussians as products of densities. Guides of other families have no products. So scores are mixed, which
are the posterior's for any guide. Parameters are mixed only to remove the differences that consensus leaves.

Letters: m `tracked`, r `scores`, φ `params`, W `graph`, v `centrality`, z `points`, S `num_particles`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pyro.infer.autoguide import AutoDelta

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_between, check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import GraphError, SettingError
from pyro_fed.graph import Consensus, Graph
from pyro_fed.graph.base import require_centrality
from pyro_fed.graph.consensus import MAX_TOLERANCE
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.averaging.local_sgd import StepContributions
from pyro_fed.infer.peers.p2p_vi import P2PVI
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.variational.guide_ascent import Average, Fit, GuideAscent, is_kind

Kept = TypeVar("Kept", Fit, Average)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PSFVI(GuideAscent, OnGraph):
    """Variational inference over a graph with any Pyro guide that can be reparametrised.

    For a Gaussian guide `P2PVI` finds the best member in tens of rounds. This algorithm takes `num_steps` of them, for
    flows, low-rank normals, guides with dependent sites, and others.

    Args:
        guide: an automatic guide, class or instance, a function of the model's arguments, or a `PyroModule`; not a
            point, which `P2PFedAvg` finds.
        num_steps: number of Adam's steps, one per round; the first half needs no rounds if there are `surrogates`.
        gossip_tolerance: share of the agents' disagreement that a round's consensus leaves.
        num_guide_draws: number of stored draws of each agent's guide, each returned once by `run`; None stores as many
            as the run returns, and at least 4,000.
        surrogates: an algorithm over the graph that leaves a Gaussian at every agent, such as `P2PVI`, or its name
            "p2pvi". Each agent fits the guide to its Gaussian before the first round. With None guides begin at their
            own start. "auto" is P2PVI if it has a full covariance and runs on the model; for an `AutoNormalizingFlow`
            it is None.

    Raises:
        SettingError: a setting out of its range, or unknown; a guide without the model's sites, with values outside of
            their supports, or with a distribution that cannot be reparametrised.
        GraphError: a graph or a schedule in which not all agents are awake in every round.

    References:
        Hassan, Salomone & Mengersen (2023), Algorithm 1; Wang et al., Eq. (8); Nedić, Olshevsky & Shi (2017), Achieving
        geometric convergence for distributed optimization over time-varying graphs.

    Example:
        >>> from pyro.infer.autoguide import AutoIAFNormal
        >>> idata = pf.run(pf.infer.P2PSFVI(guide=AutoIAFNormal), fed, graph=pf.graph.ring(5))
    """

    draws_are: ClassVar[str] = "agents"
    begins_apart: ClassVar[bool] = True
    needs_all: ClassVar[bool] = True
    without: ClassVar[Mapping[str, str]] = {
        "local_steps": "agents step by the sum of all scores; steps by their own rows do not lead to the posterior",
    }

    gossip_tolerance: float = 0.01
    surrogates: PeerGaussian | Literal["auto", "p2pvi"] | None = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, "gossip_tolerance", 0, MAX_TOLERANCE)
        if not isinstance(self.surrogates, PeerGaussian | None):
            check_choice(self, "surrogates", ("auto", "p2pvi"))
        if isinstance(self.surrogates, PeerGaussian) and self.surrogates.delegate() is not self.surrogates:
            raise SettingError(
                f"{type(self).__name__}: surrogates must leave a Gaussian at every agent, received one with a "
                "hand-written guide; take P2PVI(), or None"
            )
        if is_kind(self.guide, AutoDelta):
            raise SettingError(f"{type(self).__name__}: guide AutoDelta is a point, which P2PFedAvg finds")

    def default_rounds(self, num_clients: int) -> int:
        """One round per step, without the steps towards the surrogates."""
        return self.num_steps - self.steps_without_rounds

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that leaves a Gaussian at every agent; a guide is refused before it runs."""
        self.program(problem)
        if self.surrogates == "p2pvi":
            return P2PVI(temperature=self.temperature)
        return self.surrogates if isinstance(self.surrogates, Algorithm) else None

    def contributions(self) -> Contributions:
        """The agents' scores, which cannot be bounded: later rounds cannot undo a change of the mixed guides."""
        obstacle = "later rounds cannot undo a change of the guides; use SFVI, or P2PVI, whose agents keep sites"
        return StepContributions(self, obstacle)

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The smallest number of steps that shrinks disagreement to the tolerance; all agents have to take part."""
        require_centrality(graph, type(self).__name__, sleepers)
        if sleepers or graph.active(0) is not None:
            raise GraphError(
                f"{type(self).__name__}: a step needs the scores of all agents, and some are asleep; leave schedule= "
                "out and take a graph on which all are awake, or use P2PVI"
            )
        return graph.consensus(self.gossip_tolerance).steps

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The consensus with the fewest steps."""
        self.consensus_steps(graph, sleepers)
        return graph.consensus(self.gossip_tolerance)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent at the guide's initial parameters, or at those fitted to its own Gaussian."""
        fit, local = self.first_states(problem, num_clients, generator)
        fits = [fit] * num_clients
        if start is not None:
            beliefs = gaussian(start.shared)
            has_belief = beliefs.precision.flatten(1).any(1)  # an agent in a process of its own has only its own belief
            if not bool(has_belief.any()):
                beliefs.require_proper("the agents' beliefs")
            for agent in has_belief.nonzero().flatten().tolist():
                belief = type(beliefs)(beliefs.precision[agent], beliefs.eta[agent])
                belief.require_proper(f"the belief of agent {agent}, at which its guide begins")
                fits[agent] = self.fitted_to(problem, belief, fit, self.steps_without_rounds)
        points, message = self.empty_round(problem)
        agent_state = {"points": points, "tracked": message.double()}
        shared = {name: value.expand(num_clients, *value.shape).clone() for name, value in agent_state.items()}
        shared |= _stacked(fits) | _stacked([Average.at(fit.params) for fit in fits])
        return shared, {**local, "scores": shared["tracked"]}

    def prepare(self, problem: Problem, shared: State) -> State:
        """Draw the round's points at every agent."""
        return {**shared, "points": torch.stack([self.points(problem, fit) for fit in _each(Fit, shared)])}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Compute m_i by the change of the agent's scores, and send it with φ_i."""
        guide = {name: value for name, value in local.items() if name != "scores"}
        scores_at_draws, after = self.scores_at_points(problem, shared, guide, data, noise)
        scores = scores_at_draws / shared["centrality"].unsqueeze(-1)
        message = {"tracked": shared["tracked"] + scores - local["scores"], "params": shared["params"]}
        return message, {**after, "scores": scores}, {}

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        """Take one step of consensus on scores and parameters."""
        return {name: mix(weights, value) for name, value in messages.items()}

    def refine(self, problem: Problem, shared: State) -> State:
        """Take one step of Adam at every agent, and update the averages."""
        sums = shared["tracked"].reshape(*shared["points"].shape[:2], -1)
        fits = [self.ascended(problem, fit, own) for fit, own in zip(_each(Fit, shared), sums, strict=True)]
        before = _each(Average, shared)
        averages = [self.averaged(problem, average, fit) for average, fit in zip(before, fits, strict=True)]
        return {**shared, **_stacked(fits), **_stacked(averages)}

    def conclude(self, problem: Problem, shared: State) -> State:
        """Draw from every agent's guide, at the same ε."""
        each = zip(shared["average"], shared["seed"], strict=True)
        return {**shared, "draws": torch.stack([self.final_draws(problem, *agent) for agent in each])}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Largest step of an agent, and the largest distance of an agent from the mean."""
        params = after["params"]
        return {
            "change": float((params - before["params"]).norm(dim=-1).amax()),
            "distance": float((params - params.mean(0)).norm(dim=-1).amax()),
            **self.drift_figures(after),
        }

    def witness(self, before: State, after: State) -> State:
        """The agents' parameters before and after the round, and their guides' drift."""
        return super().witness({"params": before["params"]}, {name: after[name] for name in ("params", "drift")})


def _each(kind: type[Kept], shared: State) -> list[Kept]:
    """Every agent's record of this kind."""
    agents = range(len(shared["params"]))
    return [entries_as(kind, {name: value[agent] for name, value in shared.items()}) for agent in agents]


def _stacked(records: Sequence[Fit] | Sequence[Average]) -> State:
    """The entries of every agent's record, (A, ...)."""
    entries = [as_entries(one) for one in records]
    return {name: torch.stack([one[name] for one in entries]) for name in entries[0]}
