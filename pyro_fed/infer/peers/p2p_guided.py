"""P2PVI with a hand-written guide: beliefs and sites in the natural parameters of the guide's own families.

    t_i ← F⁻¹ ∇_λ E_q[log p_i + c_i (log p_0 - log h)],    F = ∇_λ E_q[T]        under q at x_i
    b_i = λ_i + s (t_i^new - t_i^old) / v_i       s the largest of δ, δ/2, δ/4, ... that leaves a distribution
    λ_i ← Σ_j W_ij b_j
    x_i ← x_i + s f + ...,    f = λ_i - x_i        a step of `ep.guided`'s: accelerated, or back where the bound fell

Sources: those of `ep.guided` for sites and steps; Wang et al., Eq. (8), for the consensus, as in `peer_gaussian`: every
change counts once, and Σ_i v_i λ_i = Σ_i t_i in every round, wherever sites were taken. The evidence's bound at x is
mixed in the same way, and so is the number of agents whose scores are not finite at x: of such a point the bound counts
as fallen. Beliefs begin at the guide's own q, the sum of the sites v_i λ_i that the first round replaces.

With consensus steps as published, `gossip_steps`, no agent sees whole steps: x_i is λ_i, and changes are damped.

Letters: λ `natural`, t `site`, x `at`, f `move`, F `fisher`, c `share`, v `centrality`, s `fraction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import GraphError
from pyro_fed.graph import Graph
from pyro_fed.infer.ep.ascent import has_fallen
from pyro_fed.infer.ep.guided import UNKNOWN, GuideSites, Path, proper_fraction, site_of_scores
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.peers.peer_gaussian import PeerBeliefs
from pyro_fed.infer.sites.gaussian_sites import largest_move
from pyro_fed.infer.sites.records import as_entries, entries_as


class Belief(NamedTuple):
    """What an agent has after the consensus; leading axes are agents."""

    natural: Tensor  # λ, (A, P)
    bound: Tensor  # the evidence's lower bound at x, (A,)
    unusable: Tensor  # number of agents whose site or part of the bound is not finite at x, (A,)
    at: Tensor  # the x of the next sites, (A, P)
    mean: Tensor  # of the guide's sites at λ
    sd: Tensor  # of the same
    moved: Tensor  # from x to λ in the last round: largest move of a mean in SDs, or change of a log SD, (A,)
    seed: Tensor  # of the draws of the result, (A,)
    path: Path  # the x of past rounds


class Agent(NamedTuple):
    """What an agent keeps between rounds."""

    site: Tensor  # t, (A, P)
    share: Tensor  # c, the prior's share in it, (A,); zero before the first round
    value: Tensor  # its part of the bound, (A,)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GuidedP2PVI(PeerBeliefs, GuideSites):
    """`P2PVI(guide=function)`: a guide's own exponential families, mixed in their natural parameters.

    References:
        Wang et al., Eq. (8); Khan & Lin (2017).
    """

    needs_all: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = UNKNOWN | {"moved"}

    def default_rounds(self, num_clients: int) -> int:
        """At most 100 rounds, until the agents agree and have converged."""
        return 100

    @property
    def accelerates(self) -> bool:
        """Whether sites are taken at points of the agents' own, which needs a complete consensus."""
        return self.gossip_steps is None

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """As of other beliefs; all agents have to take part in every round."""
        if sleepers or graph.random or graph.active(0) is not None:
            raise GraphError(
                "P2PVI: a hand-written guide needs a fixed graph on which all agents are awake, because each follows "
                "the steps that all make together; leave schedule= out, and take such a graph, or an automatic guide"
            )
        return super().consensus_steps(graph, sleepers)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent from the guide's initial q."""
        family = self.family(problem)
        natural = family.start
        zero, seed = natural.new_zeros(()), torch.randint(2**31, (), generator=generator)
        mean, sd = family.moments(natural)
        belief = Belief(natural, zero, zero, natural, mean, sd, zero + torch.inf, seed, Path.begin(natural))
        return tuple(  # type: ignore[return-value]  # of two
            {name: part.expand(num_clients, *part.shape).clone() for name, part in as_entries(record).items()}
            for record in (belief, Agent(natural, zero, zero))
        )

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Replace the agents' sites, and make their beliefs public with the changes."""
        family, agent = self.family(problem), entries_as(Agent, local)
        natural, v = shared["natural"], shared["centrality"]
        begins = agent.share == 0
        share = torch.where(begins, v, agent.share)
        old = torch.where(begins.unsqueeze(-1), natural * v.unsqueeze(-1), agent.site)
        draws = [self.draws_at(problem, at) for at in shared["at"]]
        scores, values = self.likelihoods(problem, torch.stack([one.z for one in draws], 1), data)
        prior_scores, prior_values = zip(*(self.prior_at(problem, one) for one in draws), strict=True)
        scores = scores + share[:, None, None] * torch.stack(prior_scores)
        values = values + share * torch.stack(prior_values)
        site = torch.cat([site_of_scores(one, own[None]) for one, own in zip(draws, scores, strict=True)])
        usable = site.isfinite().all(1) & values.isfinite()
        change = torch.where(usable.unsqueeze(-1), site - old, 0.0)
        values = torch.where(usable, values, agent.value)
        most = v.new_tensor(1.0 if self.accelerates else self.damping)
        each = zip(natural, change / v.unsqueeze(-1), strict=True)
        fraction = torch.stack([proper_fraction(family.proper, *one, most) for one in each])
        made = fraction.unsqueeze(-1) * change
        message = {
            "natural": natural + made / v.unsqueeze(-1),
            "bound": shared["bound"] + (values - agent.value) / v,
            "unusable": (~usable).to(v) / v,
            "at": shared["at"],
        }
        return message, as_entries(Agent(old + made, share, values)), {"fraction": fraction * usable}

    def refine(self, problem: Problem, shared: State) -> State:
        """Choose the points of the next sites, and compute the moments of the agents' beliefs."""
        agents = range(len(shared["natural"]))
        beliefs = [entries_as(Belief, {name: value[i] for name, value in shared.items()}) for i in agents]
        entries = [as_entries(self._after_round(problem, belief)) for belief in beliefs]
        return {**shared, **{name: torch.stack([one[name] for one in entries]) for name in entries[0]}}

    def _after_round(self, problem: Problem, belief: Belief) -> Belief:
        """An agent's belief with the x of its next site."""
        family, natural, at, path = self.family(problem), belief.natural, belief.at, belief.path
        mean, sd = family.moments(natural)
        belief = belief._replace(mean=mean, sd=sd, moved=largest_move(family.moments(at), (mean, sd)))
        if not self.accelerates:
            return belief._replace(at=natural)
        bound = torch.where(belief.unusable < 0.5, belief.bound, -torch.inf)
        if bool(has_fallen(bound, path.best_value, StepControl.fall)):
            at, path = path.back(family.proper)
        else:
            move, fisher = natural - at, self.draws_at(problem, at).fisher
            added, path = path.onwards(at, move, bound, fisher, self.damping)
            plain = at + proper_fraction(family.proper, at, move, path.pace) * move
            at = plain + added if family.proper(plain + added) else plain
        return belief._replace(at=at, path=path)

    def witness(self, before: State, after: State) -> State:
        """Each agent's own move, and its means and SDs."""
        return {name: after[name] for name in ("moved", "mean", "sd")}

    def conclude(self, problem: Problem, shared: State) -> State:
        """Draw from every agent's guide, by the same random numbers."""
        family = self.family(problem)
        each = zip(shared["natural"], shared["seed"], strict=True)
        draws = [family.sample(natural, self.kept_draw_count, int(seed)) for natural, seed in each]
        return {**shared, "draws": torch.stack(draws)}
