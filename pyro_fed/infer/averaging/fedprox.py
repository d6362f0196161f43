"""Federated averaging with a proximal term, FedProx, and with dynamic regularisation, FedDyn.

Source: Li et al. (2020), *Federated optimization in heterogeneous networks*.

    θ_k ← about arg min f_k(θ) + μ/2 ‖θ - θ_t‖²,    θ_(t+1) = Σ_k (N_k / N) θ_k

with f_k = -(log p_k + N_k / N log p_0) / N_k, by L steps of SGD. The prior is included by default (MAP). If clients
differ, FedProx's fixed point is not the mode: for exactly minimised f_k = ½ (θ - m_k)' A_k (θ - m_k) it is

    θ* = B⁻¹ Σ_k (N_k / N) (A_k + μ)⁻¹ A_k m_k,    B = Σ_k (N_k / N) (A_k + μ)⁻¹ A_k

and the mode has A_k in place of (A_k + μ)⁻¹ A_k. FedDyn has no bias: Acar et al. (2021), *Federated learning based on
dynamic regularization*.

    θ_k ← about arg min f_k(θ) - g_k'θ + μ/2 ‖θ - θ_t‖²,    g_k ← g_k - μ (θ_k - θ_t)         a client
    h ← h - μ/K Σ_k (θ_k - θ_t),    θ_(t+1) = 1/|P| Σ_k θ_k - h/μ                             the server, clients P

where h is the mean of the clients' pulls, Σ_k g_k = K h. At a fixed point θ_k = θ, h = 0 and ∇f_k = g_k, so that
Σ_k ∇f_k = 0. With

    f_k = -(K / N) log p_k - 1/N log p_0

the mean of the f_k is the negative log posterior divided by N, and the fixed point is its mode. Deviation: this f_k
weights a client by its rows, and includes the prior. A client updates g_k whether or not SGD has minimised its
objective; this does not change the fixed point.

Letters: μ `proximal`, f_k's gradient `score`, g_k `linear`, h `correction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.fedavg import FedAvg
from pyro_fed.infer.averaging.local_sgd import LocalSGD, Objective, Server, StepContributions
from pyro_fed.infer.sites.records import entries_as


class HeldObjective(NamedTuple):
    """A client's objective with the linear and the proximal term; leading axes are clients."""

    free: Objective  # without these terms
    linear: Tensor  # g_k, of a term -g_k'θ of f_k, zero in FedProx, (D,)
    anchor: Tensor  # θ_t, the point of the proximal term, (D,)


@dataclass(frozen=True, kw_only=True)
class Proximal(LocalSGD):
    """Base of algorithms whose clients are held near the server's point.

    Args:
        proximal: μ, on the scale of the log-likelihood per row.
    """

    prior: bool = True
    proximal: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "proximal")

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of SGD on f_k and the proximal term."""
        server = entries_as(Server, shared)
        return {"delta": self.step(problem, server, torch.zeros_like(server.point), data, data.num_rows, noise)}, {}, {}

    def step(
        self, problem: Problem, server: Server, linear: Tensor, data: ClientData, divisor: Tensor, noise: Noise
    ) -> Tensor:
        """The clients' steps θ_k - θ_t, (C, D), with g_k `linear` (C, D); `divisor` (C,) divides log-likelihoods."""
        free, axes = self.objective(server, data, divisor)
        objective, objective_axes = HeldObjective(free, linear, server.point), HeldObjective._make((axes, 0, 0))
        return self.descended(problem, server.point, objective, objective_axes, noise) - server.point

    def gradient(self, problem: Problem, point: Tensor, const: HeldObjective, picks: Any) -> Tensor:
        """The gradient (D,) of -f_k with its linear and proximal terms; `picks` is the step's minibatch."""
        score = self.score(problem, point, const.free, picks)
        gradient: Tensor = score + const.linear - self.proximal * (point - const.anchor)
        return gradient


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedProx(Proximal, FedAvg):
    """Federated averaging whose clients are held near the server's point: a point and no posterior, biased.

    References:
        Li et al. (2020), Federated optimization in heterogeneous networks.

    Example:
        >>> idata = pf.run(pf.infer.FedProx(proximal=0.1), fed)
    """


class DynServer(NamedTuple):
    """The server's state: θ (D,), N, h (D,) and K."""

    point: Tensor
    num_rows: Tensor
    correction: Tensor
    num_clients: Tensor


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedDyn(Proximal):
    """Federated averaging that learns each client's pull: the mode, a point and no posterior.

    Args:
        prior: whether to add the log prior, in equal shares of all clients.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect.

    References:
        Acar et al. (2021), Federated learning based on dynamic regularization.

    Example:
        >>> idata = pf.run(pf.infer.FedDyn(proximal=0.1), fed)
    """

    additive: ClassVar[bool] = False
    without: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("damping", "server_optimiser"), "the method fixes the server's step; use FedProx"
    )

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The state of `FedAvg`, with pulls of zero."""
        shared, _ = super().init(problem, num_clients, generator, start)
        zero = torch.zeros_like(shared["point"])
        server = DynServer(**shared, correction=zero, num_clients=torch.tensor(num_clients))
        return server._asdict(), {"linear": zero.expand(num_clients, -1).clone()}

    def download(self, shared: State, clients: Tensor) -> State:
        """The server's point and the number of clients, which clients receive."""
        count = shared["num_clients"].expand(len(clients))
        return {**super().download(shared, clients), "num_clients": count}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of SGD on f_k, the client's pull and the proximal term."""
        server, linear = entries_as(Server, shared), local["linear"]
        divisor = server.num_rows / shared["num_clients"]  # weights clients by their rows, see the header
        delta = self.step(problem, server, linear, data, divisor, noise)
        return {"delta": delta}, {"linear": linear - self.proximal * delta}, {}

    def contributions(self) -> Contributions:
        """The clients' steps, which cannot be bounded: a client's pull follows its own step, not the accepted part."""
        obstacle = "each client's pull follows its own step, not the accepted part of it; use FedAvg"
        return StepContributions(self, obstacle)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The mean over the clients of the round, less the correction."""
        server, delta = entries_as(DynServer, shared), messages["delta"]
        correction = server.correction - self.proximal * delta.sum(0) / server.num_clients
        point = server.point + delta.mean(0) - correction / self.proximal
        return server._replace(point=point, correction=correction)._asdict()
