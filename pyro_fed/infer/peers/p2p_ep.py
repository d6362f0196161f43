"""Expectation propagation without a server, by dynamic average consensus on sites.

Source: Guo et al., *Federated learning as variational inference*, Algorithm 1 (FedEP: cavity, tilted, site);
Kia et al., *Tutorial on dynamic average consensus* (2019), for tracking a sum whose terms change.

Agent i has a site t_i and a copy q_i of the global approximation. In a round it computes at its copy

    cavity   q_i / t_i,        tilted   p̃_i ∝ q_i p(D_i | θ) p(θ)^(c_i) / t_i
    q̂_i = the Gaussian with the tilted distribution's moments,     t_i^new = t_i q̂_i / q_i
    b_i = q_i (t_i^new / t_i)^(1 / v_i),     q_i ← Π_j b_j^(W_ij)

so that Σ_i v_i q_i = Σ_i t_i in every round (see `peers.peer_gaussian`). At a fixed point all copies are equal,
q = Π t_i, and every tilted distribution has the moments of q. This is FedEP's fixed point, on any connected graph,
including graphs that change from round to round.

Tilted moments are self-normalised averages at the standardised Sobol points z_s of q_i,

    w_s ∝ p(D_i | z_s) p(z_s)^(c_i) / t_i(z_s),

which are uniform if the site equals the likelihood, so that the rule is exact for conjugate models. It needs no
gradients. The record contains the share of effective points. The run starts from the result of `P2PVI`.

Deviation: mean and covariance use the same points, which cover a cavity much wider than q_i only where q_i has mass. A
site is not updated if its weights leave fewer effective points than the share `min_effective`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, State
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown, shared_settings
from pyro_fed.conventions.setting_checks import check_at_least, check_between
from pyro_fed.density.derivatives import clients_log_likelihoods, prior_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.peers.p2p_vi import P2PVI
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.peers.peer_sites import Agent, public_belief
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, gaussian, spread_points, where
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PEP(PeerGaussian):
    """Expectation propagation without a server, over an arbitrary graph; it starts at the answer of `P2PVI`.

    Args:
        num_points: Sobol points for expectations under a belief in `P2PVI`, which comes first; even.
        gossip_tolerance: share of the agents' disagreement that a round's consensus leaves, if `gossip_steps` is
            None; None is 0.01 here, and in `P2PVI` what that takes.
        start: where `P2PVI`, which comes first, starts: "consensus": a Laplace approximation of all data, by Newton's
            method over the graph; "local": each agent's own, with nothing exchanged, which needs more rows than
            parameters at every agent; "prior": every belief begins as the prior, or its Laplace approximation; "auto":
            "consensus", or "local" if groups of agents are awake in turn. "draw" is for beliefs as published.
        tilted_points: Sobol points of a belief for the tilted moments.
        min_effective: share of effective points below which an agent keeps its site in a round.

    References:
        Guo et al. (2023), Federated learning as variational inference, Algorithm 1, without its server.

    Example:
        >>> idata = pf.run(pf.infer.P2PEP(), fed, graph=pf.graph.ring(5))
    """

    tilted_points: int = 2048
    min_effective: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "tilted_points")
        check_between(self, "min_effective", 0, 1)

    def default_rounds(self, num_clients: int) -> int:
        """At most 50 rounds after the start."""
        return 50

    def warm_start(self, problem: Problem) -> Algorithm:
        """`P2PVI` with the same settings, whose beliefs and sites are the start."""
        return P2PVI(**shared_settings(self, PeerGaussian))

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute new sites of C agents by their tilted moments."""
        q, agent = gaussian(shared), entries_as(Agent, local)
        matched, effective = self._tilted(problem, q, agent.site, data, agent.prior_share)
        usable = q.is_proper() & (effective >= self.min_effective) & matched.is_proper()
        change = where(usable, matched / q, flat_like(q))
        message, fraction = public_belief(q, change ** (1.0 / shared["centrality"]), q.is_proper(), self.damping)
        new_agent = agent._replace(site=agent.site * change**fraction)
        info = {"fraction": fraction * usable, "effective_points": effective, **self.traces(q)}
        return as_state(message), {**local, **as_entries(new_agent)}, info

    def _tilted(
        self, problem: Problem, q: Gaussian, site: Gaussian, data: ClientData, prior_share: Tensor
    ) -> tuple[Gaussian, Tensor]:
        """Gaussians with the tilted distributions' moments, and the share of effective points, (C,)."""
        points = spread_points(q, self.tilted_points).transpose(0, 1)
        at = points.to(problem.dtype)
        log_prior = problem.mapped(prior_values, (0,))(at).double()
        log_w = clients_log_likelihoods(problem, at, data) + prior_share.unsqueeze(1) * log_prior
        log_w = log_w - type(site)(site.precision.unsqueeze(1), site.eta.unsqueeze(1)).log_factor(points)
        w = torch.softmax(log_w.nan_to_num(nan=-torch.inf), 1)
        mean = torch.einsum("cs,csd->cd", w, points)
        away = points - mean.unsqueeze(1)
        if q.dense:
            spread = torch.einsum("cs,csd,cse->cde", w, away, away)
        else:
            spread = torch.einsum("cs,csd->cd", w, away.square())
        return type(q).from_moments(mean, spread), 1.0 / (w.square().sum(1) * self.tilted_points)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning about agents whose tilted distribution does not overlap the belief."""
        effective = record.last("effective_points")
        if len(effective) == 0 or effective.min() >= self.min_effective:
            return super().warnings(record, problem)
        worst = record.workers("effective_points")[int(effective.argmin())]
        return [
            *super().warnings(record, problem),
            sentences.tilted_points_are_few(client=worst, share=float(effective.min())),
        ]
