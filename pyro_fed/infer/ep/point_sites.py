"""Diagonal sites at the point of a federated average: the start of FedEP and related algorithms on a network.

    S_k ≈ E_q[-∇² log p_k],   q = N(m, 1 / (Λ_0 + K S_k))                  m the point, Λ_0 and η_0 of the prior's site
    t_k  of precision S_k and η_k = S_k m + (Λ_0 m - η_0) / K

Each client computes S_k by the steps of `sites.online_newton` with the mean fixed, assuming that the other clients have
the same curvature; later rounds correct this. The mean of q = t_0 Π t_k is the point itself: averaging stops before
the scores of prior and likelihoods cancel, and a diagonal Newton step from there would be too long.

`Averaging` is the published start (Guo et al., Section 3.2: "as in FedPA, we run a few rounds of FedAvg as burn-in
before switching to FedEP"): FedAvg by SGD, and S_k = α_cov N_k as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Settings, explains_unknown, resolve, shared_settings
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.fedavg import BurnIn, FedAvg
from pyro_fed.infer.averaging.optim import Optimiser
from pyro_fed.infer.sites.gaussian_sites import SpreadGaussian, as_state
from pyro_fed.infer.sites.online_newton import FIRST_CURVATURE, OnlineNewton
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import DiagGaussian, Gaussian

#: The steps by which the curvature at the point is measured.
CURVATURE_STEPS = OnlineNewton(steps=20)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Averaging(Settings):
    """A start by federated averaging as published: FedAvg by SGD, then sites of precision α_cov per row.

    Args:
        rounds: rounds of averaging.
        chain_steps: SGD steps of a client a round, or epochs, see `unit`.
        step_size: learning rate of SGD, for the log-likelihood of a row.
        momentum: momentum of SGD.
        batch_size: rows in a step; None takes all.
        unit: "epochs" or "steps".
        prior: whether to add the client's share of the log prior, in place of the authors' weight decay.
        damping: the server's learning rate.
        server_optimiser: optimiser of the averaged step, as in `FedAvg`.
        scale: α_cov, the precision that each row adds to its client's first site.

    References:
        Guo et al. (2023), Section 3.2 and Table 7.

    Example:
        >>> pf.run(pf.FedEP(start=pf.infer.Averaging(rounds=400)), fed)
    """

    rounds: int = 400
    chain_steps: int = 10
    step_size: float = 0.01
    momentum: float = 0.9
    batch_size: int | None = 20
    unit: Literal["steps", "epochs"] = "epochs"
    prior: bool = True
    damping: float = 0.5
    server_optimiser: Optimiser | str | None = "sgd"
    scale: float = 0.05

    def __post_init__(self) -> None:
        check_at_least(self, 1, "rounds")
        check_positive(self, "scale")
        resolve(self, "server_optimiser", Optimiser, allow_none=True)
        self.algorithm()

    def algorithm(self) -> FedAvg:
        """The averaging with these settings."""
        return RoundsOfAveraging(**shared_settings(self, RoundsOfAveraging))


@dataclass(frozen=True, kw_only=True)
class RoundsOfAveraging(FedAvg):
    """`FedAvg` for a number of rounds."""

    rounds: int = 400

    def default_rounds(self, num_clients: int) -> int:
        """The setting `rounds`."""
        return self.rounds


class Sent(NamedTuple):
    """The server's message: the point m, Λ_0, the prior's part of each site's η (D,), and K; (C, ...) at clients."""

    point: Tensor
    prior_precision: Tensor
    pull: Tensor
    num_clients: Tensor


class Server(NamedTuple):
    """The server's state: its message, q and the prior's site."""

    sent: Sent
    q: Annotated[Gaussian, ""]
    prior: Gaussian

    def with_curvature(self, curvature: Tensor) -> Server:
        """The state whose q has its mean at the point and the clients' total curvature, (D,)."""
        precision = self.prior.precision + curvature
        return self._replace(q=DiagGaussian(precision, precision * self.sent.point))


@dataclass(frozen=True, kw_only=True)
class PointSites(SpreadGaussian):
    """One round that gives every client a diagonal site at the point of a `FedAvg`."""

    needs_all: ClassVar[bool] = True

    covariance: Literal["auto", "full", "diag"] = "diag"
    averaging: FedAvg = field(default_factory=BurnIn)
    measured: OnlineNewton = CURVATURE_STEPS
    scale: float | None = None

    def default_rounds(self, num_clients: int) -> int:
        """One round."""
        return 1

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """None: the one round has no criterion."""
        return None

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The averaging."""
        return self.averaging

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the averaged point, the prior's site there, and sites of an assumed curvature per row."""
        point = required_start(start, self).shared["point"].double()
        row_curvature = FIRST_CURVATURE if self.scale is None else self.scale
        site_precision = torch.full_like(point, row_curvature * problem.num_rows / num_clients)
        narrow_q = DiagGaussian.from_moments(point, 1 / (num_clients * site_precision))
        prior = self.prior_site(problem, narrow_q)
        # A prior with heavy tails is not log-concave everywhere; the mean of q does not depend on its site's precision.
        prior = DiagGaussian(prior.precision.abs(), prior.eta)
        pull = (prior.precision * point - prior.eta) / num_clients
        server = Server(Sent(point, prior.precision, pull, torch.tensor(num_clients)), prior, prior)
        site = DiagGaussian(
            site_precision.expand(num_clients, -1), (site_precision * point + pull).expand(num_clients, -1)
        )
        return as_entries(server.with_curvature(site_precision * num_clients)), as_state(site)

    def download(self, shared: State, clients: Tensor) -> State:
        """The point, the prior's precision, and the prior's part of each site."""
        return super().download(entries_as(Sent, shared)._asdict(), clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws and minibatches, if the curvature is measured."""
        if self.scale is not None:
            return ()
        return self.measured.draw_noise(problem, num_rows, generator)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute curvatures at the point."""
        point, prior, pull, clients = entries_as(Sent, shared)
        if self.scale is None:
            precision = self.measured.curvature(problem, point, prior, clients, data, noise)
        else:
            precision = torch.ones_like(point) * (self.scale * data.num_rows.double()).unsqueeze(-1)
        return {"precision": precision}, as_state(DiagGaussian(precision, precision * point + pull)), {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Multiply the sites, with q's mean at the point."""
        return as_entries(entries_as(Server, shared).with_curvature(messages["precision"].sum(0)))
