"""Diagonal sites at a point that averaging has found: where FedEP and its kin begin on a network.

    S_k ≈ E_q[-∇² log p_k],   q = N(m, 1 / (Λ_0 + K S_k))                  m the point, Λ_0 and η_0 of the prior's site
    t_k  of precision S_k and η_k = S_k m + (Λ_0 m - η_0) / K

by the steps of `sites.online_newton` with the mean held still, at each client by itself: of the other clients it takes
that they have its own curvature. The sites are such that q = t_0 Π t_k has its mean at the point: where averaging has
stopped is not where the prior and the likelihoods balance, and a single diagonal Newton step from there is longer than
it may be. What is not true of the sites the rounds that follow replace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, started
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.burn_in import BurnIn
from pyro_fed.infer.averaging.fedavg import FedAvg
from pyro_fed.infer.sites.gaussian_sites import GaussianAlgorithm, as_state
from pyro_fed.infer.sites.online_newton import FIRST_CURVATURE, OnlineNewton
from pyro_fed.ops.gaussian_structures import DiagGaussian

#: The steps by which the curvature at the point is measured.
MEASURED = OnlineNewton(steps=20)


@dataclass(frozen=True, kw_only=True)
class PointSites(GaussianAlgorithm):
    """One round that gives every client a diagonal site at the point of a `FedAvg`.

    Args:
        averaging: what finds the point.
        measured: the steps by which the curvature is measured.

    Example:
        >>> pf.run(pf.FedEP(start="fedavg"), fed)
    """

    needs_all: ClassVar[bool] = True

    covariance: Literal["auto", "full", "diag"] = "diag"
    averaging: FedAvg = field(default_factory=BurnIn)
    measured: OnlineNewton = MEASURED

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
        share = torch.full_like(point, FIRST_CURVATURE * problem.num_rows / num_clients)
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
        return self.measured.draw_noise(problem, num_rows, generator)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Curvatures at the point."""
        point, prior, clients = (shared[name] for name in ("point", "prior_precision", "num_clients"))
        site = self.measured.curvature(problem, point, prior, clients, data, noise)
        return {"precision": site}, {"precision": site, "eta": site * shared["point"] + shared["pull"]}, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """q of the sites, its mean at the point."""
        prior = DiagGaussian(shared["prior_precision"], shared["prior_eta"])
        return {**shared, **self._states(shared["point"], prior, messages["precision"].sum(0))}
