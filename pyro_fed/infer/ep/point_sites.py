"""Diagonal sites at a point that averaging has found: the start of FedEP and its kin on a network.

    S_k ≈ E_q[-∇² log p_k],   q = N(m, 1 / (Λ_0 + K S_k))                  m the point, Λ_0 and η_0 of the prior's site
    t_k  of precision S_k and η_k = S_k m + (Λ_0 m - η_0) / K

by the steps of `sites.online_newton` with the mean fixed, at each client by itself, which assumes that the other
clients have its own curvature; later rounds correct that. So q = t_0 Π t_k has its mean at the point: prior and
likelihoods do not balance where averaging stops, and a diagonal Newton step from there is too long.

As published (Guo et al., Section 3.2: "as in FedPA, we run a few rounds of FedAvg as burn-in before switching to
FedEP") with `Averaging`: FedAvg by SGD, and S_k = α_cov N_k, with which the authors' code begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, required_start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Settings, explains_unknown, resolve
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
    """A start by averaging as published, and its sites: FedAvg by SGD, then α_cov for each row.

    Args:
        rounds: of averaging.
        chain_steps: SGD steps of a client a round, or epochs, see `unit`.
        step_size: of SGD, on the log-likelihood a row.
        momentum: of SGD.
        batch_size: rows a step; None takes all.
        unit: "epochs" or "steps".
        prior: add the client's share of the log prior, in place of the weight decay of the authors' code.
        damping: the server's learning rate.
        server_optimiser: of the averaged step, as of `FedAvg`.
        scale: α_cov, the precision that a row gives its client's first site.

    Raises:
        SettingError: a setting out of its range, or unknown.

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
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "scale"}
        return RoundsOfAveraging(**shared)


@dataclass(frozen=True, kw_only=True)
class RoundsOfAveraging(FedAvg):
    """`FedAvg` for a number of rounds."""

    rounds: int = 400

    def default_rounds(self, num_clients: int) -> int:
        """The setting `rounds`."""
        return self.rounds


class Sent(NamedTuple):
    """What the server sends: the point m, Λ_0, each site's share of the prior's pull (D,), and K; or (C, ...)."""

    point: Tensor
    prior_precision: Tensor
    pull: Tensor
    num_clients: Tensor


class Server(NamedTuple):
    """The server's state: what it sends, q and the prior's site."""

    sent: Sent
    q: Annotated[Gaussian, ""]
    prior: Gaussian

    def with_curvature(self, curvature: Tensor) -> Server:
        """The state with q at the point, by the clients' curvatures together, (D,)."""
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
        """Start from the averaged point, the prior's site about it, and sites of a row's assumed curvature."""
        point = required_start(start, self).shared["point"].double()
        first = FIRST_CURVATURE if self.scale is None else self.scale
        share = torch.full_like(point, first * problem.num_rows / num_clients)
        narrow = DiagGaussian.from_moments(point, 1 / (num_clients * share))
        prior = self.prior_site(problem, narrow)
        # A prior with tails is not log-concave everywhere; q's mean is at the point whatever the site's precision.
        prior = DiagGaussian(prior.precision.abs(), prior.eta)
        pull = (prior.precision * point - prior.eta) / num_clients
        server = Server(Sent(point, prior.precision, pull, torch.tensor(num_clients)), prior, prior)
        site = DiagGaussian(share.expand(num_clients, -1), (share * point + pull).expand(num_clients, -1))
        return as_entries(server.with_curvature(share * num_clients)), as_state(site)

    def download(self, shared: State, clients: Tensor) -> State:
        """The point, the prior's precision, and the sites' share of the prior, which clients receive."""
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
