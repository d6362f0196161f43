"""Chains whose clients take T steps in parallel from one point and are then averaged: the base of `FALD` and `VRFALD`.

    θ^c ← θ^c + h/2 v_c(θ^c) + sqrt(h / p_c) ξ^c,    ξ^c ~ N(0, I),    then    θ ← Σ_c p_c θ^c

with p_c = f_c / Σ f over the clients of the chain, and an estimate v_c of the posterior's score.

Letters: f_c `visit_share`, p_c `weight`, T `local_steps`, h `step_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, State
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chains import ServerState
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.visits import Visit
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.entries import with_trailing_axes


@dataclass(frozen=True, kw_only=True)
class AveragedLangevin(Langevin):
    """Chains of which all clients make some steps from one point, the average of the last ones.

    Args:
        local_steps: T, steps of every client in a round.
        thin: one step in this many is kept, a multiple of `local_steps`: clients agree at the end of a round alone.
    """

    needs_all: ClassVar[bool] = True

    local_steps: int = 5
    thin: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thin % self.local_steps:
            raise SettingError(
                f"{type(self).__name__}: thin must be a multiple of local_steps={self.local_steps}, since clients "
                f"agree at the end of a round alone; received {self.thin}"
            )

    def default_schedule(self) -> Schedule:
        """All clients in every round, for every chain."""
        return All()

    def download(self, shared: State, clients: Tensor) -> State:
        """Each chain's position, with the weights, for all clients of that chain."""
        if len(clients) % self.num_chains:
            raise SettingError(
                f"{type(self).__name__}: {len(clients)} clients cannot be shared out to {self.num_chains} chains: use "
                "a schedule that names the same number in every call"
            )
        arrivals = entries_as(ServerState, shared).arrivals(clients)
        return arrivals._asdict() | {"weight": self.chain_shares(shared, clients)}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take T steps with the clients' own noise."""
        scaled = {**noise, "normal": self.clients_noise(shared, noise["normal"])}
        message, news, info = super().local_step(problem, shared, local, data, scaled)
        return message | {"weight": shared["weight"]}, news, info

    def clients_noise(self, shared: State, normal: Tensor) -> Tensor:
        """ξ^c / sqrt(p_c), (T, C, D), whose average has the variance of one ξ."""
        return normal * shared["weight"].rsqrt().unsqueeze(-1)

    def chain_shares(self, shared: State, clients: Tensor) -> Tensor:
        """p_c of each visit, (C,): the client's share among the clients of its chain."""
        f = shared["visit_share"][clients].unflatten(-1, (self.num_chains, -1))
        part: Tensor = (f / f.sum(-1, keepdim=True)).flatten(-2)
        return part

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """Average the clients of each chain, θ = Σ_c p_c θ^c, and store the chains of R rounds, (R, K M, ...)."""
        weight, visits = self._by_chain(messages["weight"]), entries_as(Visit, messages)

        def averaged(value: Tensor) -> Tensor:
            """The average over the clients of each chain."""
            return average(self._by_chain(value), weight)

        # Every client was visited: the column says so by -1.
        client = torch.full((len(weight), self.num_chains), -1, device=weight.device)
        position, draws = averaged(visits.position), averaged(visits.draws)
        chains = Visit(position, client, draws, averaged(visits.gradient_norm), averaged(visits.step_size))
        return self.stored_states(shared, chains, visits)

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """The next visits of a chain's clients, which are the same ones, from the average of the last ones."""
        position, weight = (self._by_chain(messages[name].unsqueeze(0)) for name in ("position", "weight"))
        start = average(position, weight)[0].repeat_interleave(position.shape[2], 0)
        return super().onward(received, {**messages, "position": start}, clients)

    def visits_a_round(self, shared: State) -> int:
        """One visit to every client, for each chain."""
        return self.num_chains * len(shared["visit_share"])

    def _by_chain(self, value: Tensor) -> Tensor:
        """(R, K M, ...) by chain, (R, M, K, ...)."""
        return value.reshape(len(value), self.num_chains, -1, *value.shape[2:])


def average(value: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum over the clients of each chain, (R, M, K, ...) to (R, M, ...); weights (R, M, K) sum to one."""
    return (value * with_trailing_axes(weight, value)).sum(2)
