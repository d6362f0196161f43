"""The server's state of `FedHMC`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.infer.langevin.chain_store import ChainStore, Draws
from pyro_fed.infer.langevin.trajectories import Trajectory


class HmcState(NamedTuple):
    """The server's state.

    Attributes:
        chains: where the chains are, and the draws of the last window and of this one.
        trajectory: the present trajectories.
        factor: A, (D, D) or its diagonal (D,), float64.
        step_size: ε before each chain's own factor, ().
        window: number of this window, from 0, ().
        done: finished trajectories of this window, ().
        acceptance: the sum of their mean acceptances, ().
        diverged: number of chains' trajectories that diverged in the last window and in this one, (2,).
        prior_value: log p_0 at the trajectories' points, (M,).
        prior_score: its gradient, (M, D).
        num_clients: K.
        key: the seed of all randomness.
    """

    chains: ChainStore
    trajectory: Annotated[Trajectory, "trajectory."]
    factor: Tensor
    step_size: Tensor
    window: Tensor
    done: Tensor
    acceptance: Tensor
    diverged: Tensor
    prior_value: Tensor
    prior_score: Tensor
    num_clients: Tensor
    key: Tensor

    @classmethod
    def begin(cls, position: Tensor, factor: Tensor, step: float, num_clients: int, key: Tensor) -> HmcState:
        """Chains at θ (M, D) before their first round."""
        start = position.double()
        none = torch.tensor(0)
        return cls(
            chains=ChainStore.begin(position),
            trajectory=Trajectory.waiting(start),
            factor=factor.double(),
            step_size=start.new_tensor(step),
            window=none,
            done=none,
            acceptance=start.new_zeros(()),
            diverged=torch.zeros(2, dtype=torch.int64),
            prior_value=start.new_zeros(len(start)),
            prior_score=torch.zeros_like(start),
            num_clients=torch.tensor(num_clients),
            key=key,
        )

    def points(self) -> Tensor:
        """Where the clients are asked next, (M, D), in the model's dtype."""
        return self.trajectory.point.to(self.chains.position.dtype)

    def with_draws(self, wanted: int) -> HmcState:
        """The chains where their trajectories have ended, as one more draw of each."""
        t = self.trajectory
        position = t.start.to(self.chains.position.dtype)
        one = position.new_ones(len(position), 1)
        draws = Draws(position[:, None], -one, t.score.norm(dim=-1, keepdim=True), t.step)
        chains = self.chains._replace(position=position, steps=self.chains.steps + 1).append(draws, wanted)
        return self._replace(chains=chains)

    def next_window(self, step: float, factor: Tensor) -> HmcState:
        """The state at the beginning of a new window, with the draws of the one before; the first window's are left."""
        length = int(self.done) if int(self.window) else 0
        kept, unknown = int(self.chains.kept), torch.tensor(float("nan"))
        recent = Draws(*(buffer[:, kept - length : kept].clone() for buffer in self.chains.buffers))
        chains = ChainStore.begin(self.chains.position)._replace(steps=self.chains.steps)
        if length:
            chains = chains.append(recent)._replace(r_hat=unknown, ess=unknown, judged=torch.tensor(0))
        return self._replace(
            chains=chains,
            factor=factor,
            step_size=self.step_size.new_tensor(step),
            window=self.window + 1,
            done=torch.zeros_like(self.done),
            acceptance=torch.zeros_like(self.acceptance),
            diverged=torch.stack([self.diverged[1] * bool(length), torch.zeros_like(self.diverged[1])]),
        )
