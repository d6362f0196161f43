"""Peer-to-peer variational inference (Wang et al., Section III), exact by default.

Every round, agent i

    1. updates its belief by its own data,  b_i = argmin_π KL(π || q_i) + E_π[-log f(D_i)]           (3)
    2. sends b_i to its neighbours and takes the weighted product,  q_i = Π_j b_j^(W_ij) / Z          (4), (8)

Update (3) is solved by `local_steps` expected Newton steps (natural gradients of the ELBO), in closed form
where the model is conjugate: the site of a batch, t, is the quadratic with E_π[∇ log f] and E_π[∇² log f],
and b_i = q_i t. Or by Bayes by backprop, as in Section V: u steps of Adam on a Gaussian guide (`infer.guide_fit`).
Letters: W `graph`, v `centrality`, q_i `shared`, b_i message, t_i `local`.

Weighting. As published, beliefs end near  p(θ) Π_j p(D_j | θ)^(v_j)  after each datum was used once: about
1/A of the data count; and agents that use their data again in every round, as in Section V, count them
again without end. `weighting="paper"` is that. `weighting="exact"` is the default: likelihoods are raised
to 1/v_i, and an agent that comes back to its data replaces its old site instead of adding a new one (see
`infer.peer_gaussian`), so that every agent ends at one posterior, that of the pooled data: exactly, for a
conjugate model; the variational posterior (PVI's and FedEP's fixed point), otherwise.

Data. `batch_size=None`: all of an agent's rows in every round. With a batch size each round takes the
agent's next rows, in order, each once; its belief then waits for the others.

Acceleration. After the consensus an agent sees what the step from the last point was, x → G(x) = q_i, and takes its
next site not at q_i but where Anderson's rule points to from there (`infer.look_ahead`). The sum of the sites, and so
the posterior at which all come to rest, does not depend on where sites were taken on the way.

Ambiguous in the paper, and how it is read here: whether in Section V q^(t-1) stands fixed during the u local
updates of a round (it does here), how a minibatch's likelihood is scaled there against the KL of Eq. (3)
(each row counts once a round), and whether an agent outside the current star trains (it sleeps).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, row_dtype
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph
from pyro_fed.infer.guides.fitting import GuideFit
from pyro_fed.infer.peers.acceleration import look_ahead, nothing_known
from pyro_fed.infer.peers.beliefs import where
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.peers.peer_sites import new_site, public_belief
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian

#: Beliefs that move by less than this, in SDs, have no more data to come.
STILL = 1e-9


@dataclass(frozen=True, kw_only=True)
class P2PVI(PeerGaussian):
    """Peer-to-peer variational inference over an arbitrary graph: `pf.run(pf.P2PVI(), fed, graph=...)`.

    Args:
        weighting: "exact" (each datum counts once, whatever the graph) or "paper" (as published).
        batch_size: rows a round, each used once; None: all rows in every round.
        update: how Eq. (3) is solved: "newton" (expected Newton steps, closed form where conjugate), or
            "svi" (Adam on the ELBO with a Gaussian guide, Bayes by backprop), which needs beliefs to begin
            at the prior.
        local_steps: Newton steps for Eq. (3) in a round.
        memory: rounds that the acceleration of single, undamped Newton steps remembers; 1 is none, as in graphs where
            a round does not bring the agents together.
        svi_steps: u, Adam's steps in a round.
        svi_step_size: Adam's rate, in SDs of the belief.
        svi_samples: draws of the guide a step.
        svi_batch_size: B, rows a step, weighted to all of the agent's; None takes all.

    References:
        Wang et al., Eq. (3), (4), (8).
    """

    weighting: Literal["exact", "paper"] = "exact"
    update: Literal["newton", "svi"] = "newton"
    batch_size: int | None = None
    local_steps: int = 1
    memory: int = 4
    svi_steps: int = 100
    svi_step_size: float = 0.05
    svi_samples: int = 1
    svi_batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "weighting", ("exact", "paper"))
        check_choice(self, "update", ("newton", "svi"))
        check_at_least(self, 1, "svi_steps", "svi_samples")
        check_at_least(self, 1, "svi_batch_size", allow_none=True)
        check_positive(self, "svi_step_size")
        self._check_combinations()
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_at_least(self, 1, "local_steps", "memory")

    def _check_combinations(self) -> None:
        if self.weighting == "exact" and self.start == "draw":
            raise SettingError(
                "P2PVI: start='draw' puts a false prior mean into the answer; it needs weighting='paper'"
            )
        if self.update == "svi" and not self.starts_at_prior:
            raise SettingError("P2PVI: update='svi' fits a guide around a proper belief: it needs start='prior'")
        if self.update == "svi" and self.batch_size is not None:
            raise SettingError("P2PVI: update='svi' takes svi_batch_size; batch_size is for data that stream in")

    @property
    def needs_centrality(self) -> bool:
        """Only the exact weighting does."""
        return self.weighting == "exact"

    def default_rounds(self, num_clients: int) -> int:
        """At most 100; the run stops when the agents agree and have stopped moving."""
        return 100

    @property
    def starts_at_prior(self) -> bool:
        """Also as published, whatever `start` says."""
        return self.weighting == "paper" or super().starts_at_prior

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """None where the beliefs begin as the prior."""
        return None if self.starts_at_prior else super().warm_start(problem)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Flat beliefs, or the prior at every agent; no row used."""
        shared, local = super().init(problem, num_clients, generator, start)
        local["next_row"] = torch.zeros(num_clients, dtype=torch.int64, device=shared["eta"].device)
        return shared, {**local, **(nothing_known(gaussian(shared), self.memory) if self._accelerates else {})}

    def on_graph(self, graph: Graph) -> Self:
        """Where a round's consensus is not complete, an agent does not see what a round's step was."""
        peers = super().on_graph(graph)
        complete = graph.active(0) is None and not graph.random and self.gossip_steps is None
        return peers if complete or not isinstance(peers, P2PVI) else replace(peers, memory=1)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """None for Newton steps; the guide's draws and minibatches for "svi"."""
        return () if self.update == "newton" else self._guide_fit.draw_noise(problem, num_rows, generator)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Eq. (3): the public beliefs of C agents."""
        q = gaussian(shared)
        step = self._newton_step if self.update == "newton" else self._svi_step
        belief, news, fraction = step(problem, q, shared, local, data, noise)
        new_local = {**local, **news}
        next_row = new_local["next_row"]
        left = data.num_rows - next_row if self.batch_size else torch.zeros_like(next_row)
        return (
            as_state(belief),
            new_local,
            {"fraction": fraction, "rows_left": left.double(), **self.traces(q)},
        )

    def _newton_step(
        self, problem: Problem, q: Gaussian, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[Gaussian, State, Tensor]:
        """Expected Newton steps: belief, what changes in the local state, share of the change made."""
        old = gaussian(local)
        batch, next_row = self._rows(data, local["next_row"])
        held = self.first_share(shared, local)
        share = held if self._keeps_site else torch.where(local["prior_share"] == 0, held, 0.0)
        weight = self._weight(shared)
        at, news = look_ahead(q, local) if self._accelerates else (q, {})
        for _ in range(self.local_steps):
            site, known = new_site(self, problem, at, batch, share, local, self.start_steps)
            change = site / old if self._keeps_site else site
            at, fraction = public_belief(q, change**weight, known & q.is_proper(), self.damping)
        new = old * change**fraction if self._keeps_site else old
        return at, {**as_state(new), **news, "prior_share": held, "next_row": next_row}, fraction

    def _svi_step(
        self, problem: Problem, q: Gaussian, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[Gaussian, State, Tensor]:
        """A guide fitted to cavity × likelihood: Eq. (3) as published, where the cavity is q_i itself."""
        old = gaussian(local)
        cavity = q / old if self._keeps_site else q
        guide = self._guide_fit.fit(problem, q, cavity, data, noise)
        found = guide / cavity
        usable = guide.is_proper()
        flat = type(q)(torch.zeros_like(q.precision), torch.zeros_like(q.eta))
        change = where(usable, found / old if self._keeps_site else found, flat)
        belief, fraction = public_belief(q, change ** self._weight(shared), q.is_proper(), self.damping)
        site = old * change**fraction if self._keeps_site else old
        return belief, as_state(site), fraction * usable

    @property
    def _accelerates(self) -> bool:
        """Whether sites are taken where Anderson acceleration points to: undamped, a round's step is seen whole."""
        single = self.update == "newton" and self.local_steps == 1 and self.damping == 1
        return self._keeps_site and single and self.memory > 1

    @property
    def _keeps_site(self) -> bool:
        """Whether an agent replaces its site instead of adding to its belief."""
        return self.weighting == "exact" and self.batch_size is None

    def _weight(self, shared: State) -> Tensor:
        """1 / v_i, or 1 as published: (C,)."""
        v = shared["centrality"]
        return 1.0 / v if self.weighting == "exact" else torch.ones_like(v)

    @property
    def _guide_fit(self) -> GuideFit:
        return GuideFit(
            steps=self.svi_steps,
            step_size=self.svi_step_size,
            samples=self.svi_samples,
            batch_size=self.svi_batch_size,
        )

    def _rows(self, data: ClientData, next_row: Tensor) -> tuple[Batch, Tensor]:
        """This round's rows, (C, m), at weight one, and where the next round begins."""
        if self.batch_size is None:
            return data.full_batch(), next_row
        position = next_row[:, None] + torch.arange(self.batch_size, device=next_row.device)
        valid = position < data.num_rows[:, None]
        index = data.row_index.gather(1, position.clamp_max(data.row_index.shape[1] - 1))
        batch = Batch(tuple(leaf[index] for leaf in data.rows), valid.to(row_dtype(data.rows)))
        return batch, torch.minimum(position[:, -1] + 1, data.num_rows)

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """When agents agree and stand still: entirely still where data stream in.

        No criterion as published, where data used again count again; nor by stochastic steps.
        """
        if self.update != "newton" or (self.weighting != "exact" and self.batch_size is None):
            return None
        settled = super().converged(figures)
        return settled if self.batch_size is None else settled and figures[-1]["change"] < STILL

    def warnings(self, record: Record, problem: Problem) -> list[str]:
        """Rows that no round has reached."""
        left = record.last("rows_left")
        if left.sum() == 0:
            return super().warnings(record, problem)
        more = -(-int(left.max()) // int(self.batch_size or 1))
        return [
            *super().warnings(record, problem),
            f"{int(left.sum())} rows were never used: run at least {more} more rounds, or larger batches",
        ]
