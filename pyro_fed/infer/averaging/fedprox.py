"""Federated averaging with a proximal term, which keeps clients near the server's point.

Source: Li et al. (2020), *Federated optimization in heterogeneous networks*.

    θ_k ← about arg min f_k(θ) + μ/2 ‖θ - θ_t‖²,    θ_(t+1) = Σ_k (N_k / N) θ_k

with f_k = -(log p_k + N_k / N log p_0) / N_k, by L steps of SGD. Letters: μ `proximal`, f_k's gradient `score`.

Its fixed point is no mode where clients differ. With f_k = ½ (θ - m_k)' A_k (θ - m_k), solved to the end,

    θ* = B⁻¹ Σ_k (N_k / N) (A_k + μ)⁻¹ A_k m_k,    B = Σ_k (N_k / N) (A_k + μ)⁻¹ A_k

where the mode has A_k in place of (A_k + μ)⁻¹ A_k: which is right for μ → ∞ alone, where nothing moves. `FedDyn` has no
bias.

The prior is counted by default (MAP).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.fedavg import FedAvg, LocalSGD, Objective, Server
from pyro_fed.infer.sites.records import entries_as


class HeldObjective(NamedTuple):
    """A client's objective with the linear and the proximal term; leading axes are clients.

    Args:
        free: without them.
        linear: g_k, of a term -g_k'θ of f_k, zero in FedProx, (D,).
        anchor: θ_t, the point of the proximal term, (D,).
    """

    free: Objective
    linear: Tensor
    anchor: Tensor


@dataclass(frozen=True, kw_only=True)
class Proximal(LocalSGD):
    """Base of algorithms whose clients are held near the server's point.

    Args:
        proximal: μ, on the scale of the log-likelihood a row.

    The others are those of `LocalSGD`.
    """

    prior: bool = True
    proximal: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "proximal")

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make L steps of SGD on f_k and the proximal term."""
        server = entries_as(Server, shared)
        return {"delta": self.step(problem, server, torch.zeros_like(server.point), data, data.num_rows, noise)}, {}, {}

    def step(
        self, problem: Problem, server: Server, linear: Tensor, data: ClientData, divisor: Tensor, noise: Noise
    ) -> Tensor:
        """The clients' steps θ_k - θ_t, (C, D), with g_k `linear` (C, D); `divisor` (C,) is of log-likelihoods."""
        free, axes = self.objective(server, data, divisor)
        held, held_axes = HeldObjective(free, linear, server.point), HeldObjective._make((axes, 0, 0))
        return self.descended(problem, server.point, held, held_axes, noise) - server.point

    def gradient(self, problem: Problem, point: Tensor, const: HeldObjective, picks: Any) -> Tensor:
        """The gradient (D,) of -f_k with its linear and proximal terms; `picks` is the step's minibatch."""
        score = self.score(problem, point, const.free, picks)
        found: Tensor = score + const.linear - self.proximal * (point - const.anchor)
        return found


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedProx(Proximal, FedAvg):
    """Federated averaging whose clients are held near the server's point: a point and no posterior, biased.

    Args:
        chain_steps: L, SGD steps a round, or epochs, see `unit`.
        step_size: of SGD, on the log-likelihood a row.
        momentum: of SGD.
        batch_size: rows a step; None takes all.
        unit: the unit of `chain_steps`: "steps" or "epochs".
        prior: add the client's share of the log prior.
        damping: δ, the server's learning rate.
        server_optimiser: of the averaged step, as of `FedAvg`.
        proximal: μ, on the scale of the log-likelihood a row.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Li et al. (2020), Federated optimization in heterogeneous networks.

    Example:
        >>> idata = pf.run(pf.infer.FedProx(proximal=0.1), fed)
    """
