"""Peer-to-peer variational inference (Wang et al., Section III), exact by default.

Every round, agent i

    1. updates its belief by its own data,  b_i = argmin_π KL(π || q_i) + E_π[-log f(D_i)]           (3)
    2. sends b_i to its neighbours and takes the weighted product,  q_i = Π_j b_j^(W_ij) / Z          (4), (8)

Update (3) is solved by a tilted inference, as at the clients of FedEP (`ep.tilted`). The default is an expected Newton
step, a natural gradient of the ELBO, which is exact for conjugate models: the site t of a batch is the quadratic with
E_π[∇ log f] and E_π[∇² log f], and b_i = q_i t. The alternative is Bayes by backprop as in Section V: u steps of Adam
on a Gaussian guide (`guides.gaussian_guides`).
Letters: W `graph`, v `centrality`, q_i `shared`, b_i message, t_i `local`.

Weighting. As published, beliefs are near  p(θ) Π_j p(D_j | θ)^(v_j)  after each datum was used once, which counts about
1/A of the data. In Section V agents reuse their data, so each round counts the data again.
`weighting="paper"` does this. With the default, `weighting="exact"`, likelihoods are raised to 1/v_i, and an agent that
reuses its data replaces its old site instead of adding a new one (see `peers.peer_gaussian`). Every agent then
converges to the posterior of the pooled data, or for models that are not conjugate to the variational posterior (the
fixed point of PVI and FedEP).

Data. With `batch_size=None` every round uses all of an agent's rows. With a batch size each round uses the agent's next
rows, in order, each once; afterwards the agent's site does not change.

Acceleration. After the consensus an agent knows the step from its last point, x → G(x) = q_i. It takes its next site at
the point that Anderson acceleration extrapolates from there (`peer_sites.History`). The sum of the sites, and hence the
limit, does not depend on the points at which earlier sites were taken. Acceleration requires agents that agree: if a
hundredth of their disagreement remains, steps differ from agent to agent (changes enter beliefs 1 / v_i times), and
twice as many rounds are needed.

Non-smooth rows. Discontinuous scores, as of a median regression, have no curvature at a point, so there is no Laplace
approximation, and the expected curvature changes within the SDs of the belief. Agents then start from the prior, if it
is proper, and take half of a change in a round; whole changes overshoot and diverge.

Ambiguous in the paper: whether q^(t-1) stays fixed during the u local updates of a round in Section V (here it does),
how a minibatch's likelihood is scaled relative to the KL of Eq. (3) (here each row counts once per round), and whether
an agent outside the current star trains (here it does not).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused, resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_choice
from pyro_fed.density.derivatives import Kind, few_rows_findings
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph
from pyro_fed.guides.gaussian_guides import guided_covariance, is_hand_written
from pyro_fed.infer.ep.guided import with_own_families
from pyro_fed.infer.ep.tilted import IVON, Received, TiltedInference
from pyro_fed.infer.ep.tilted.base import numerics_of
from pyro_fed.infer.peers import findings, networks
from pyro_fed.infer.peers.contributions import PeerContributions
from pyro_fed.infer.peers.p2p_fedavg import PeerBurnIn
from pyro_fed.infer.peers.p2p_guided import GuidedP2PVI
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.peers.peer_sites import (
    Agent,
    History,
    Turn,
    complete_consensus_belief,
    new_site,
    public_belief,
    sum_of_sites_is_improper,
)
from pyro_fed.infer.peers.update import Newton, Update, check_update
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, gaussian, is_finite, where
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PVI(PeerGaussian):
    """Peer-to-peer variational inference over an arbitrary graph, exact by default.

    Args:
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians as far as
            the covariance is full by default. Of "newton" and the start alone.
        num_points: Sobol points for expectations under a belief; even. Of "newton" alone.
        tolerance: the run has converged when in a round no agent's mean moves by more than this many SDs and no SD by
            more than this share, and agents differ by no more. There is no such end with "svi", whose steps are
            random, nor as published if data count again in every round.
        damping: fraction of a site's change in a round, in (0, 1]; 1/2 if it is not set and scores are discontinuous,
            as those of a median regression or of a lasso's prior.
        gossip_tolerance: share of the agents' disagreement that a round's consensus leaves, if `gossip_steps` is
            None. None is 1e-4 if rounds are accelerated (see `pf.infer.update.Newton`), otherwise 0.01.
        start: "consensus": a Laplace approximation of all data first, by Newton's method over the graph; "local": each
            agent's own, with nothing exchanged, which needs more rows than parameters at every agent; "prior": every
            belief begins as the prior, or its Laplace approximation; "draw": with the prior's SDs about one draw from
            it, common to all (a neural network's prior mean is a saddle), which needs `weighting="paper"`; "fedavg":
            the point that averaging over the graph finds, of update="ivon" alone. "auto" is that there, and "prior" as
            published and with "svi", which take nothing else but "draw", and where rows' scores jump; "local", under
            the Gaussian nearest to the prior, where the prior's do; otherwise "consensus", or "local" if groups of
            agents are awake in turn.
        weighting: "exact" (each datum counts once, whatever the graph) or "paper" (as published).
        update: the solver of Eq. (3): `pf.infer.update.Newton` (expected Newton steps, closed form where conjugate),
            `pf.infer.update.SVI` (Adam on the ELBO with a Gaussian guide, Bayes by backprop), or `pf.infer.update.IVON`
            (gradients alone, taken on models of more than 1000 parameters if none is set), or its name for the
            defaults: "newton", "svi", "ivon"; or any other of `pf.infer.tilted`, which needs start="prior".
        batch_size: rows a round, each used once, in order; None takes all rows in every round. Of "newton" alone; the
            minibatches of Adam are a setting of `pf.infer.update.SVI`.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance; or a function whose
            global sites are exponential families, which agents mix in their natural parameters.

    References:
        Wang et al., Peer-to-peer variational federated learning over arbitrary graphs, Eq. (3), (4), (8).

    Example:
        >>> idata = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(5))
        >>> published = pf.P2PVI(weighting="paper", update=pf.infer.update.SVI(steps=47), gossip_steps=1)
    """

    weighting: Literal["exact", "paper"] = "exact"
    batch_size: int | None = None
    update: Update | TiltedInference | str = Newton()
    guide: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_hand_written(self.guide):
            self.delegate()
        elif self.guide is not None:
            object.__setattr__(self, "covariance", guided_covariance(self, self.guide, self.covariance))
        check_choice(self, "weighting", ("exact", "paper"))
        check_at_least(self, 1, "batch_size", allow_none=True)
        resolve(self, "update", Update)
        self._check_start()
        check_update(self, self.solver, self.accelerates)
        if not self._has_criterion:
            refuse_unused(
                self,
                "this update has no criterion of convergence; use update='newton' with weighting='exact' for one",
                "tolerance",
            )

    def _check_start(self) -> None:
        published, by_gradients = self.weighting == "paper", self.solver.by_gradients
        draws_the_mean = self.start == "draw"
        averages_wrongly = (self.start == "fedavg") != (by_gradients and self.start != "auto")
        has_laplace_start = self.start in ("consensus", "local")
        if draws_the_mean and not published:
            raise SettingError("P2PVI: start='draw' uses a wrong prior mean; it needs weighting='paper'")
        if averages_wrongly or (by_gradients and published):
            raise SettingError(
                "P2PVI: update='ivon' begins at the point that averaging finds, start='fedavg', which is also what "
                f"'auto' takes then, with weighting='exact'; received update={self.update!r}, "
                f"start={self.start!r}, weighting={self.weighting!r}"
            )
        if has_laplace_start and published:
            raise SettingError(
                "P2PVI: weighting='paper' begins at the prior, start='prior' or 'draw'; for "
                f"start={self.start!r} use weighting='exact'"
            )

    def delegate(self) -> Algorithm:
        """This algorithm, or with a hand-written guide the one that mixes the guide's families."""
        if not is_hand_written(self.guide):
            return self
        return with_own_families(self, GuidedP2PVI, PeerGaussian.num_points)

    @property
    def solver(self) -> TiltedInference:
        """The tilted inference that solves Eq. (3): the setting `update` as an instance."""
        return cast(TiltedInference, self.update)

    @property
    def by_newton(self) -> bool:
        """Whether agents take expected Newton steps."""
        return self.solver.newton_steps > 0

    @property
    def kind(self) -> Kind:
        """The curvature of starts, and of updates that use one; "hessian" for other updates."""
        return super().kind if self.solver.takes_curvature else "hessian"

    @property
    def keeps_site(self) -> bool:
        """Whether an agent replaces its old site instead of adding a new one."""
        return self.weighting == "exact" and self.batch_size is None

    def weight(self, v: Tensor) -> Tensor:
        """1 / v_i, or 1 as published: (C,)."""
        return 1.0 / v if self.weighting == "exact" else torch.ones_like(v)

    @property
    def needs_centrality(self) -> bool:
        return self.weighting == "exact"

    def default_rounds(self, num_clients: int) -> int:
        """At most 100 rounds, until the agents agree and have converged; for "ivon", its own setting."""
        return self.solver.agents_rounds

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """Averaging over the graph for "ivon"; otherwise Newton's method over it, unless agents start by themselves."""
        if self.start == "fedavg":
            return PeerBurnIn()
        return super().warm_start(problem)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from flat beliefs, or from the prior at every agent, without using rows."""
        if self.start == "fedavg":
            shared, local = networks.first_states(problem, num_clients, start, self)
            return shared, local | as_entries(Turn(torch.zeros_like(shared["eta"][:, 0], dtype=torch.int64)))
        shared, local = super().init(problem, num_clients, generator, start)
        none = torch.zeros_like(shared["eta"][:, 0])
        turn = Turn(
            next_row=none.long(),
            must_stay_proper=none.bool() if self.accelerates else None,
            pace=torch.ones_like(none) if self.solver.round_decay != 1 else None,
        )
        if self.accelerates:
            local |= as_entries(History.empty(gaussian(shared), self.solver.memory))
        return shared, local | as_entries(turn)

    def on_graph(self, graph: Graph) -> Self:
        """This algorithm; without acceleration if a round's consensus is incomplete, since steps are then unknown."""
        peers = super().on_graph(graph)
        complete = graph.active(0) is None and not graph.random and self.gossip_steps is None
        return peers if complete else peers.unaccelerated()

    @property
    def accelerates(self) -> bool:
        """Whether sites are taken at accelerated points, which needs single, undamped steps and complete consensus."""
        single = self.keeps_site and self.solver.newton_steps == 1 and self.damping == 1
        return single and self.solver.memory > 1

    def unaccelerated(self) -> Self:
        """The algorithm with an update that has no history of rounds."""
        if self.solver.memory == 1:
            return self
        return replace(self, update=replace(cast(Newton, self.update), memory=1))

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        return self.solver.draw_noise(problem, num_rows, generator)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Solve Eq. (3): the public beliefs b_i = q_i (t_i^new / t_i)^(s / v_i) of C agents."""
        prior_share = self.site_prior_share(local["prior_share"], shared["centrality"])
        if self.start == "fedavg":
            solver = cast(IVON, self.solver)
            belief, new_entries, fraction = networks.step(
                self, solver, self.damping, problem, shared, local, prior_share, data, noise
            )
        else:
            belief, new_entries, fraction = self._tilted_step(problem, shared, local, prior_share, data, noise)
        next_row = entries_as(Turn, {**local, **new_entries}).next_row
        rows_left = data.num_rows - next_row if self.batch_size else torch.zeros_like(next_row)
        info = {"fraction": fraction, "rows_left": rows_left.double(), **self.traces(gaussian(shared))}
        return as_state(belief), {**new_entries, "prior_share": prior_share}, info

    def _tilted_step(
        self, problem: Problem, shared: State, local: State, prior_share: Tensor, data: ClientData, noise: Noise
    ) -> tuple[Gaussian, State, Tensor]:
        """b_i, the changes of the agents' states, and the fraction s of each site's change, (C,)."""
        q, weight, agent = gaussian(shared), self.weight(shared["centrality"]), entries_as(Agent, local)
        old_site = agent.site if self.keeps_site else flat_like(q)  # as published, a new site is added
        turn, points, new_entries = entries_as(Turn, local), q, State()
        had_improper_sum = sum_of_sites_is_improper(q, agent.site)
        rows, next_row = turn.rows(data, self.batch_size)
        if self.accelerates:
            history = entries_as(History, local).look_ahead(q)
            points = history.at
            new_entries |= as_entries(history)
        must_stay_proper = None if turn.must_stay_proper is None else turn.must_stay_proper | had_improper_sum
        pace = None if turn.pace is None else turn.pace * self.solver.round_decay
        new_entries |= as_entries(Turn(next_row, must_stay_proper, pace))
        share = prior_share if self.keeps_site else torch.where(agent.prior_share == 0, prior_share, 0.0)
        numerics, received = numerics_of(self, problem, share), Received(points, points / old_site, turn.pace)
        tilted, points_are_proper = new_site(
            self.solver, problem, numerics, received, rows, noise, agent, weight, had_improper_sum
        )
        # Sites that are not finite are sent, and the round rejects them.
        unusable = ~tilted.usable & is_finite(tilted.site)
        site, can_backtrack = where(unusable, old_site, tilted.site), points_are_proper & q.is_proper()
        change = site / old_site
        if must_stay_proper is not None:
            belief, fraction = complete_consensus_belief(q, old_site, site, weight, can_backtrack, must_stay_proper)
        else:
            belief, fraction = public_belief(q, change**weight, can_backtrack, self.damping)
        site = old_site * change**fraction if self.keeps_site else agent.site
        return belief, {**as_entries(agent._replace(site=site)), **new_entries}, fraction * tilted.usable

    @property
    def _has_criterion(self) -> bool:
        """Whether there is a criterion of convergence."""
        return self.solver.deterministic and (self.weighting == "exact" or self.batch_size is not None)

    def contributions(self) -> Contributions:
        return PeerContributions(self)

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether agents agree and have converged; with a batch size, whether beliefs do not move at all."""
        if not self._has_criterion:
            return None
        has_converged = super().converged(figures)
        return has_converged if self.batch_size is None else has_converged and figures[-1]["change"] < SAME_SHARE

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about a target other than the posterior, and about rows that no round has used."""
        published, drawn = self.weighting == "paper", self.start == "draw"
        return [
            *(findings.published_target(record, self.batch_size, drawn) if published else []),
            *super().warnings(record, problem),
            *few_rows_findings(problem, self.solver.few_rows),
            *findings.unused_rows(record, self.batch_size),
        ]
