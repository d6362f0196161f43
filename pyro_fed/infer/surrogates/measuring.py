"""One round that measures the clients' surrogates, before the run that depends on it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import POINT_NUMBERS, as_state, gaussian
from pyro_fed.infer.surrogates.contributions import MeasuredContributions
from pyro_fed.infer.surrogates.surrogates import Given, fitted_surrogates, one_each, shares
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class Measuring(Algorithm):
    """One round of all clients at points under q = p Π_s q_s; it does not change the surrogates.

    Args:
        surrogates: where they come from, an algorithm that leaves Gaussian sites, or `Given`.
        probabilities: f_s; uniform by default.
        num_points: Sobol points; even.
    """

    needs_all: ClassVar[bool] = True

    surrogates: Algorithm | Given
    probabilities: tuple[float, ...] | None = None
    num_points: int = 128

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_points")

    @abstractmethod
    def unknown(self, q: Gaussian) -> State:
        """The entries of the server's state before the measurement."""

    @abstractmethod
    def measured(
        self, problem: Problem, shared: State, local: State, data: ClientData, num_points: int
    ) -> tuple[State, State, State]:
        """Measure some clients' surrogates at `num_points` points; other arguments and results as of `local_step`."""

    def default_rounds(self, num_clients: int) -> int:
        """One round, with all clients."""
        return 1

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that fits the surrogates."""
        return self.surrogates if isinstance(self.surrogates, Algorithm) else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from q, with each client's surrogate."""
        sites, target = fitted_surrogates(problem, self.surrogates, start)
        share = shares(self.probabilities, num_clients)
        local = as_state(one_each(sites, num_clients)) | {"share": share}
        return as_state(target) | self.unknown(target), local

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q, under which the clients measure."""
        return super().download({name: shared[name] for name in ("precision", "eta")}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Measure each client's surrogate, client by client if the numbers at all points are many."""
        count = problem.traits.affordable_points(data.row_index.numel(), self.num_points)
        clients = len(shared["eta"])
        if clients == 1 or shared["eta"].numel() * count <= POINT_NUMBERS:
            return self.measured(problem, shared, local, data, count)
        each = [slice(client, client + 1) for client in range(clients)]
        found = [self.measured(problem, select(shared, i), select(local, i), data.of(i), count) for i in each]
        messages, new, figures = (concatenate(parts) for parts in zip(*found, strict=True))
        return messages, new, figures

    def contributions(self) -> Contributions:
        """Each client's measurement."""
        return MeasuredContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum the measurements over the clients."""
        return shared | {name: value.sum(0) for name, value in messages.items()}

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of a measurement that is NaN: other surrogates, or no measurement."""
        return "the surrogates do not fit: give others (surrogates=), or a step_size, which need not measure them"

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of q, (1, num_draws, D)."""
        return gaussian(shared).even_sample(num_draws, generator)[None]


def pulls(q: Gaussian, scores: Tensor) -> Tensor:
    """(C e)_i / sqrt(C_ii): shifts in SDs of parameter i of Gaussians q (K,), with covariance C, by e (S, K, D)."""
    spread = q.moments()[1]
    if spread.dim() == q.eta.dim():
        return spread.sqrt() * scores
    moved = (spread @ scores.unsqueeze(-1)).squeeze(-1)
    return moved / spread.diagonal(dim1=-2, dim2=-1).sqrt()
