"""Parallel-DSVGD as published (Kassab & Simeone, Appendix A.5, Algorithm 5): several clients per round.

Every scheduled client takes its turn as in DSVGD, from the same particles φ^(i-1), but sends its local particles. The
server distils them by L_s steps of SVGD towards

    ∇ log q^(i)(φ) = ∇ log p_0(φ) + Σ_k ∇ log t_k^(i)(φ)                                        (28), (29)

with t_k the KDE of client k's last local particles, and 1 before its first turn.

Letters: φ `particles`, θ_k `sites` (K, N, D), L_s `server_steps`; the others as in `papers.dsvgd`.

The limits are those of `papers.dsvgd`, and one more: the KDE of a site has the bandwidth's variance, not the site's. So
q^(i) is too narrow if many clients have little data and wide sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.algorithm.schedule import Schedule, UniformRandom
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between
from pyro_fed.density.derivatives import prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.papers.dsvgd import Approximation, PaperDSVGD
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.stein import kde_score


class Server(NamedTuple):
    """The server's state: φ (N, D), whether q is the prior, θ_k (K, N, D), and whether clients had a turn, (K,)."""

    particles: Tensor
    is_prior: Tensor
    sites: Tensor
    visited: Tensor


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PaperParallelDSVGD(PaperDSVGD):
    """Parallel-DSVGD as published: several clients per round send their sites, which the server distils.

    Args:
        local_steps: L, SVGD steps of a client on its tilted target.
        entropy: refused, since the server moves particles by several clients' sites; use `PaperDSVGD`.
        server_steps: L_s, SVGD steps at the server.
        share: share of the clients that work in a round by default, chosen at random; at least one client.

    References:
        Kassab & Simeone, Appendix A.5, Algorithm 5, Eq. (28)-(29).

    Example:
        >>> idata = pf.run(pf.papers.PaperParallelDSVGD(share=0.5), fed)
    """

    server_steps: int = 200
    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "server_steps")
        refuse_unused(self, "the server moves particles towards several clients' sites at once", "entropy")
        check_between(self, "share", 0, 1)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start like DSVGD; the server also stores every client's site."""
        shared, local = super().init(problem, num_clients, generator, start)
        server = Server(**shared, sites=local["site"].clone(), visited=local["visited"].clone())
        return server._asdict(), local | {"client": torch.arange(num_clients)}

    def default_schedule(self) -> Schedule:
        """A share of the clients, at random (Fig. 15)."""
        return _Share(self.share)

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download(entries_as(Approximation, shared)._asdict(), clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take a turn as in DSVGD; the message is the new site."""
        _, after, figures = super().local_step(problem, shared, local, data, noise)
        number = {"client": local["client"]}
        return {"site": after["site"], **number}, {**after, **number}, figures

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Replace the clients' old sites by their new ones."""
        server, clients = entries_as(Server, shared), messages["client"]
        sites, visited = server.sites.clone(), server.visited.clone()
        sites[clients], visited[clients] = messages["site"], True
        is_prior = torch.zeros_like(server.is_prior)
        return server._replace(sites=sites, visited=visited, is_prior=is_prior)._asdict()

    def refine(self, problem: Problem, shared: State) -> State:
        """Take L_s steps of SVGD towards the prior times all sites, Eq. (29)."""
        server = entries_as(Server, shared)
        particles = server.particles[None]
        carry = particles, self.start_optimiser(particles)
        const = server.sites[None], server.visited[None]
        (particles, _), _ = problem.scan(self._server_step, carry, const, (), self.server_steps)
        return server._replace(particles=particles[0])._asdict()

    def _server_step(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        particles, optimiser = carry
        sites, visited = const
        scores = kde_score(particles, sites, self.kde_bandwidth, self.kde_floor)
        likelihood = torch.where(visited[:, None, None], scores, 0.0).sum(0)
        return self.move(particles, prior_scores(problem, particles) + likelihood, optimiser), ()


@dataclass(frozen=True)
class _Share(Schedule):
    """A share of the clients, uniformly at random."""

    share: float

    def select(self, round: int, num_clients: int, rng: Any) -> list[int]:
        """The selected clients, at least one."""
        return UniformRandom(max(1, int(self.share * num_clients + 0.5))).select(round, num_clients, rng)
