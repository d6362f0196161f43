"""Diagonal sites at a point that averaging has found: where FedEP and its kin begin on a network.

    S_k ≈ E_q[-∇² log p_k],   q = N(m, 1 / (Λ_0 + K S_k))                  m the point, Λ_0 and η_0 of the prior's site
    t_k  of precision S_k and η_k = S_k m + (Λ_0 m - η_0) / K

by steps of `tilted.IVON` with the mean held still, at each client by itself: of the other clients it takes that they
have its own curvature. The sites are such that q = t_0 Π t_k has its mean at the point: where averaging has stopped is
not where the prior and the likelihoods balance, and a single diagonal Newton step from there is longer than it may be.
What is not true of the sites the rounds that follow replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, started
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.infer.averaging.burn_in import BurnIn
from pyro_fed.infer.averaging.fedavg import FedAvg
from pyro_fed.infer.ep.tilted.ivon import moved_site
from pyro_fed.infer.sites.antithetic import draw, score_and_curvature, turned
from pyro_fed.infer.sites.gaussian_sites import GaussianAlgorithm, as_state
from pyro_fed.ops.gaussian_structures import DiagGaussian


@dataclass(frozen=True, kw_only=True)
class PointSites(GaussianAlgorithm):
    """One round that gives every client a diagonal site at the point of a `FedAvg`.

    Args:
        averaging: what finds the point.
        steps: at which the curvature is measured.
        pairs: draws a step, each with its opposite.
        batch_size: rows a step; None takes all.
        memory: weight of the curvature so far in a step.
        first_curvature: that a row is taken to have before the first step.

    Example:
        >>> pf.run(pf.FedEP(start="fedavg"), fed)
    """

    needs_all: ClassVar[bool] = True

    averaging: FedAvg = BurnIn()
    steps: int = 20
    pairs: int = 1
    batch_size: int | None = 32
    memory: float = 0.9
    first_curvature: float = 0.1

    def default_rounds(self, num_clients: int) -> int:
        """One."""
        return 1

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """No criterion: it measures."""
        return None

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The averaging."""
        return self.averaging

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The point, the prior's site about it, and sites of the curvature that rows are taken to have."""
        point = started(start, self).shared["point"].double()
        share = torch.full_like(point, self.first_curvature * problem.num_rows / num_clients)
        narrow = DiagGaussian.from_moments(point, 1 / (num_clients * share))
        prior = self.prior_site(problem, narrow)
        # A prior with tails is not log-concave everywhere; q's mean is at the point whatever the site's precision.
        prior = DiagGaussian(prior.precision.abs(), prior.eta)
        pull = (prior.precision * point - prior.eta) / num_clients
        count = torch.tensor(num_clients)
        shared = {**self._states(point, prior, share * num_clients), "pull": pull, "num_clients": count}
        sites = {"precision": share.expand(num_clients, -1), "eta": (share * point + pull).expand(num_clients, -1)}
        return shared, sites

    def _states(self, point: Tensor, prior: DiagGaussian, curvature: Tensor) -> State:
        precision = prior.precision + curvature
        return {
            "point": point,
            **as_state(DiagGaussian(precision, precision * point)),
            **as_state(prior, "prior_"),
        }

    def download(self, shared: State, clients: Tensor) -> State:
        """The point, the prior's precision, and what the sites share of the prior."""
        names = ("point", "prior_precision", "pull", "num_clients")
        return super().download({name: shared[name] for name in names}, clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws and minibatches."""
        draws = draw(self.steps, self.pairs, problem.dim, generator, problem.dtype)
        if self.batch_size is None:
            return draws, ()
        return draws, draw_minibatches(num_rows, self.batch_size, self.steps, generator, problem.dtype)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Curvatures at the point."""
        draws, picks = noise
        batch, dims = with_batches(data, self.batch_size)
        point, prior, count = (shared[name].to(problem.dtype) for name in ("point", "prior_precision", "num_clients"))
        const = ((point, prior, count, draws.pool[0]), batch)
        carry = (data.num_rows.to(problem.dtype).unsqueeze(-1) * self.first_curvature).expand_as(point)
        site, _ = problem.scan(self._step, carry, const, (draws.turns, picks), self.steps, ((0, 0, 0, 0), dims))
        site = torch.where((data.num_rows > 0).unsqueeze(-1), site.clamp_min(0), 0.0)
        eta = site * shared["point"] + shared["pull"]
        return {"precision": site}, {"precision": site.double(), "eta": eta.double()}, {}

    def _step(self, problem: Problem, site: Tensor, const: Any, x: Any) -> tuple[Tensor, tuple[()]]:
        """The curvature after one step of one client."""
        (point, prior, count, pool), rows = const
        turns, picks = x
        total = prior + count * site.clamp_min(0)
        eps, batch = turned(pool, turns), batch_of(rows, picks)
        _, curvature = score_and_curvature(problem, point, total.rsqrt(), eps, batch)
        return moved_site(site, curvature, total, 1 - self.memory), ()

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """q of the sites, its mean at the point."""
        prior = DiagGaussian(shared["prior_precision"], shared["prior_eta"])
        return {**shared, **self._states(shared["point"], prior, messages["precision"].double().sum(0))}
