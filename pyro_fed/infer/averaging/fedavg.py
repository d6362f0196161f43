"""Federated averaging, with adaptive server optimisers.

Source: McMahan et al. (2017); Reddi et al. (2020), Algorithm 2; the baseline of Guo et al.

    θ_k ← θ after L local steps of SGD on -log p_k / N_k,    θ ← θ + δ optim(Σ_k (N_k / N) (θ_k - θ))

Deviations: `prior` adds the client's share N_k / N of the log prior to its objective (MAP); the papers have no prior. A
step on all rows is bounded by the curvature that the client's own gradients show, see `local_sgd`.
Letters: θ `point`, θ_k - θ `delta`, N_k `divisor`, N `num_rows`, δ `damping`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.conventions.nested_settings import Variant, chosen_setting, explains_unknown, refuse_unused, resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import (
    ClientData,
)
from pyro_fed.infer.averaging.local_sgd import LocalSGD, Server
from pyro_fed.infer.averaging.optim import OPTIM, Adam, Optimiser
from pyro_fed.infer.sites.records import entries_as


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSGD):
    """Federated averaging: averages of the clients' SGD iterates, a point and no posterior.

    Args:
        damping: δ, the server's learning rate.
        server_optimiser: optimiser of the averaged step: an instance from `pf.infer.optim`, or its name for the
            defaults: "sgd", "adagrad", or "adam" (here with `betas` (0.9, 0.99)). None is plain averaging.

    References:
        McMahan et al. (2017); Reddi et al. (2020).

    Example:
        >>> idata = pf.run(pf.FedAvg(chain_steps=50), fed)
        >>> idata = pf.run(pf.FedAvg(server_optimiser=pf.infer.optim.SGD(momentum=0.9), damping=0.5), fed)
    """

    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {
        "server_optimiser": {"adam": Adam(betas=(0.9, 0.99))}  # Reddi et al., Section 5
    }

    damping: float = 1.0
    server_optimiser: Optimiser | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "damping")
        resolve(self, "server_optimiser", Optimiser, allow_none=True)

    @property
    def optimiser(self) -> Optimiser | None:
        """The setting `server_optimiser` as an instance."""
        return cast("Optimiser | None", self.server_optimiser)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start at a point, with the state of the server's optimiser."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.optimiser is None:
            return shared, local
        point = entries_as(Server, shared).point
        return shared | prefixed(OPTIM, self.optimiser.init({"point": point}, self.damping)), local

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average the steps by rows, and pass the average through the optimiser."""
        point = entries_as(Server, shared).point
        delta = (weights.unsqueeze(-1) * messages["delta"]).sum(0)
        if self.optimiser is None:
            return {**shared, "point": point + self.damping * delta}
        step, memory = self.optimiser.step({"point": point}, {"point": delta}, within(shared, OPTIM), self.damping)
        return {**shared, "point": point + step["point"], **prefixed(OPTIM, memory)}


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class BurnIn(FedAvg):
    """`FedAvg` by Adam on minibatches, for the first rounds of another algorithm.

    The length of Adam's steps does not depend on the scale of the gradients. In a network this scale grows with the
    width, so that no step size of SGD suits all. Near a random start gradients are mostly noise, and a first round at
    the full rate would move ReLU units out of the range of all rows. So the rate rises over the first rounds.
    """

    # number of rounds; None takes 40, or 100 for a network of at most 1000 parameters that does not classify
    rounds: int | None = None
    step_size: float = 0.03  # Adam's rate, from round `rising` on
    rising: int = 3  # number of rounds over which the rate rises linearly; with 1 it is constant
    second_moment: float = 0.99  # Adam's β_2; `momentum` is β_1
    eps: float = 1e-8
    batch_size: int | None = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "rounds", allow_none=True)
        check_at_least(self, 1, "rising")
        check_between(self, "second_moment", 0, 1, "[)")
        check_positive(self, "eps")
        refuse_unused(self, "its steps are counted", "unit")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The state of `FedAvg`, with the number of rounds so far."""
        shared, local = super().init(problem, num_clients, generator, start)
        return {**shared, "rounds_before": torch.tensor(0)}, local

    def download(self, shared: State, clients: Tensor) -> State:
        """The server's point, and the number of rounds so far."""
        return {**super().download(shared, clients), "rounds_before": shared["rounds_before"].expand(len(clients))}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of Adam, which starts anew in every round."""
        server = entries_as(Server, shared)
        objective, axes = self.objective(server, data, data.num_rows)
        zero = torch.zeros_like(server.point)
        rate = self.step_size * ((shared["rounds_before"] + 1).to(zero) / self.rising).clamp_max(1)
        carry, const = (server.point, zero, zero, zero[:, 0]), (objective, rate)
        (point, *_), _ = problem.scan(self._adam, carry, const, noise, self.chain_steps, (axes, 0))
        return {"delta": point - server.point}, {}, {}

    def _adam(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[()]]:
        point, first, second, count = carry
        objective, rate = const
        score, count = self.score(problem, point, objective, picks), count + 1
        first = self.momentum * first + (1 - self.momentum) * score
        second = self.second_moment * second + (1 - self.second_moment) * score.square()
        mean, square = first / (1 - self.momentum**count), second / (1 - self.second_moment**count)
        return (point + rate * mean / (square.sqrt() + self.eps), first, second, count), ()

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average like `FedAvg`, and count the round."""
        after = super().combine(shared, messages, weights)
        return {**after, "rounds_before": shared["rounds_before"] + 1}

    def default_rounds(self, num_clients: int) -> int:
        """The setting `rounds`."""
        rounds: int = chosen_setting(self, "rounds")
        return rounds
