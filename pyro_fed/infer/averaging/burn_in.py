"""Federated averaging for some rounds, as the start of an algorithm that refines its point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.fedavg import FedAvg, Server
from pyro_fed.infer.sites.records import entries_as


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class BurnIn(FedAvg):
    """`FedAvg` on minibatches by Adam, for the rounds with which another algorithm begins.

    Adam's steps are as long whatever the scale of the gradients, which in a wide network is that of its width: no step
    size of SGD is right for all. They are as long where gradients are all noise, too, as beside a random start: at the
    full rate a first round moves each parameter by half a unit, which takes ReLU units out of the reach of all rows,
    and no gradient brings them back. So the rate rises over the first rounds, linearly.

    Args:
        rounds: of averaging; None takes 40, and 100 of a network of at most 1000 parameters that does not classify.
        chain_steps: L, Adam's steps a round.
        step_size: Adam's rate, from round `rising` on.
        rising: rounds over which the rate rises to it; 1 has it from the start.
        momentum: Adam's β_1.
        second_moment: Adam's β_2.
        eps: what is added to the root of the mean square.
        batch_size: rows a step; None takes all.
        unit: refused: its steps are counted.
        prior: add the client's share of the log prior.
        damping: δ, the server's learning rate.
        server_optimiser: of the averaged step, as of `FedAvg`.

    Example:
        >>> pf.run(pf.FedEP(start="fedavg"), fed)
    """

    rounds: int | None = None
    step_size: float = 0.03
    rising: int = 3
    second_moment: float = 0.99
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

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make L steps of Adam, which starts afresh in every round."""
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
        """Average as `FedAvg`, and count the round."""
        after = super().combine(shared, messages, weights)
        return {**after, "rounds_before": shared["rounds_before"] + 1}

    def default_rounds(self, num_clients: int) -> int:
        """The setting `rounds`."""
        rounds: int = chosen_setting(self, "rounds")
        return rounds
