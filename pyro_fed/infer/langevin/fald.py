"""Federated averaging Langevin dynamics: all chosen clients in parallel, then averaged.

Source: Deng et al. (2022), *On convergence of federated averaging Langevin dynamics*; Plassard et al. (2023),
*Federated averaging Langevin dynamics*, for control variates against the clients' drift. In a round client c of
the chosen set makes T steps from the server's θ,

    θ^c ← θ^c + h/2 score_c(θ^c) + sqrt(h / p_c) ξ^c,    ξ^c ~ N(0, I),    then    θ ← Σ_c p_c θ^c

with p_c = f_c / Σ f over the chosen set, and score_c of `infer.conducive`, whose f-weighted mean is the posterior's
score. The averaged noise has variance Σ_c p_c² h / p_c = h: the average is Eq. (1) of FSGLD's paper, up to what the
scores change while the clients are apart. Conducive gradients are the control variate: with surrogates equal to the
likelihoods all clients have the same linear score, and the average is exact for every T.

Letters: f_c `probabilities`, p_c `weight`, T `local_steps`, h `step_size`, α `alpha`.
Deviations: none of the noise is shared by the clients (the source's ρ is 0), and the conducive gradient takes the
place of Plassard's stochastic control variates. Those of `infer.langevin` hold too, as settings. A step of the
default length keeps the clients' own noise, h T / p_c, near one posterior variance for a handful of clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise, State
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.langevin import LangevinAlgorithm
from pyro_fed.ops.entries import widened


@dataclass(frozen=True, kw_only=True)
class FALD(LangevinAlgorithm):
    """FALD: clients in parallel from the same point, averaged after `local_steps` steps.

    A draw is the average at the end of a round; `thin` counts steps, and whole rounds are kept.

    Args: as for `LangevinAlgorithm`, and
        alpha: weight of the conducive gradient; 0 for the plain form, whose clients drift apart.

    References:
        Deng, Zhang, Ma, Song, Zhang & Lin (2022). Plassard, Vono, Durmus & Moulines (2023).
    """

    needs_all: ClassVar[bool] = True

    local_steps: int = 5
    thin: int = 5
    visit_time: float = 0.2
    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0:
            raise SettingError(f"FALD: alpha must not be negative, received {self.alpha}")
        if self.thin % self.local_steps:
            raise SettingError(
                f"FALD: thin must be a multiple of local_steps={self.local_steps}, since clients agree at the end "
                f"of a round alone; received {self.thin}"
            )

    @property
    def conducive_weight(self) -> float:
        """α."""
        return self.alpha

    def default_schedule(self) -> Schedule:
        """All clients."""
        return All()

    def download(self, shared: State, clients: Tensor) -> State:
        """Each chain's position to all clients that work for it, with their weights."""
        number = len(clients) // self.num_chains
        if number * self.num_chains != len(clients):
            raise SettingError(
                f"FALD: {len(clients)} clients cannot be shared out to {self.num_chains} chains: use a schedule that "
                "names the same number in every call"
            )
        f = shared["share"][clients].reshape(self.num_chains, number)
        weight = (f / f.sum(1, keepdim=True)).reshape(-1)
        every = {name: shared[name].expand(len(clients)) for name in ("steps", "step_size")}
        position = shared["position"].repeat_interleave(number, 0)
        return {"position": position, "client": clients, "weight": weight, **every}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """T steps with the client's share of the noise."""
        scaled = {**noise, "normal": noise["normal"] * shared["weight"].rsqrt().unsqueeze(-1)}
        message, news, info = super().local_step(problem, shared, local, data, scaled)
        return message | {"weight": shared["weight"]}, news, info

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average the clients of each chain."""
        weight = messages["weight"].reshape(self.num_chains, -1)

        def average(value: Tensor) -> Tensor:
            grouped = value.reshape(*weight.shape, *value.shape[1:])
            return (grouped * widened(weight, grouped)).sum(1)

        names = ("position", "draws", "gradient_norm", "step_size")
        averaged = {name: average(messages[name]) for name in names}
        # Every client was visited: the column says so by -1.
        client = torch.full((self.num_chains,), -1, device=weight.device)
        return super().combine(shared, {**averaged, "client": client}, weights)
