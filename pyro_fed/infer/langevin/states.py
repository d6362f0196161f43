"""States of Langevin samplers: where chains begin, and what a client keeps between visits, receives and sends.

Chains begin at draws of p(θ) Π_s q_s(θ), or of the prior. The covariance A A' of that Gaussian is the preconditioner,
and its mode θ* is where control variates and conducive gradients are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.gradients import ConduciveGradient, TrustRegion
from pyro_fed.infer.surrogates.surrogates import fitted_surrogates
from pyro_fed.ops.gaussian import Gaussian


class ClientState(NamedTuple):
    """A client's state, of several clients (C, ...); None if a sampler does not use an entry."""

    inverse_f: Tensor  # 1/f_s
    ready: Tensor  # whether the client has been visited
    anchor: Tensor  # θ*, the mode of p(θ) Π q_s(θ), (D,)
    factor: Tensor  # A of the preconditioner A A', (D, D) or its diagonal (D,)
    anchor_score: Tensor | None = None  # gradient of all its rows' log-likelihood at θ*, (D,)
    longest_step: Tensor | None = None  # the longest derived step at this client
    pull: Tensor | None = None  # α g_s(θ*), (D,)
    pull_slope: Tensor | None = None  # α (P - P_s/f_s), (D, D) or (D,)
    metric: Tensor | None = None  # the posterior's precision, by which the distance from θ* is measured, (D, D) or (D,)
    trust_radius: Tensor | None = None  # the distance at which g_s stops growing

    @property
    def conducive(self) -> ConduciveGradient | None:
        """α g_s; None without conducive gradients."""
        if self.pull is None or self.pull_slope is None:
            return None
        if self.metric is None or self.trust_radius is None:
            return ConduciveGradient(self.anchor, self.pull, self.pull_slope)
        return ConduciveGradient(self.anchor, self.pull, self.pull_slope, TrustRegion(self.metric, self.trust_radius))

    def limit_step(self, step_size: Tensor, at: Tensor | slice = slice(None)) -> Tensor:
        """h of visits, no longer than each client allows; `at` has the chains' clients, by default each its own."""
        return step_size if self.longest_step is None else torch.minimum(step_size, self.longest_step[at])


class Arrival(NamedTuple):
    """What a client receives for each chain that visits it, (C, ...)."""

    position: Tensor  # where the chain is, (C, D)
    client: Tensor  # the client's number, (C,)
    steps: Tensor  # number of steps of the chain so far, (C,)
    step_size: Tensor  # h of its steps, before they fall or are shortened, (C,)


class Visit(NamedTuple):
    """What C visits send: the chains' positions, and every `stride`-th of their T steps; of R rounds (R, C, ...)."""

    position: Tensor  # where the chain is, (C, D)
    client: Tensor  # the client's number, (C,)
    draws: Tensor  # positions that may be kept, (C, T / stride, D)
    gradient_norm: Tensor  # of the preconditioned scores, (C, T / stride)
    step_size: Tensor  # h, (C, T / stride)


class Beginning(NamedTuple):
    """The starts of chains."""

    position: Tensor  # of the M chains, (M, D)
    anchor: Tensor  # θ*, (D,)
    factor: Tensor  # A, (D, D) or its diagonal (D,)
    gaussians: tuple[Gaussian, Gaussian] | None = None  # the surrogates q_s, batch (K,), and p(θ) Π_s q_s(θ)


def at_prior(problem: Problem, num_chains: int, generator: torch.Generator) -> Beginning:
    """Starts at draws of the prior."""
    zero = torch.zeros(problem.dim, dtype=problem.dtype)
    return Beginning(problem.init(num_chains, generator), zero, torch.ones_like(zero))


def at_surrogates(
    problem: Problem,
    surrogates: object,
    start: Start | None,
    num_chains: int,
    precondition: bool,
    generator: torch.Generator,
) -> Beginning:
    """Starts at draws of p(θ) Π_s q_s(θ), from `Given`, or from the final states of the algorithm that fits q_s."""
    gaussians = fitted_surrogates(problem, surrogates, start)
    target = gaussians[1]
    position = target.sample(num_chains, generator).to(problem.dtype)
    factor = target.root() if precondition else torch.ones_like(target.eta)
    return Beginning(position, target.mean().to(problem.dtype), factor.to(problem.dtype), gaussians)


def new_clients(begin: Beginning, share: Tensor) -> ClientState:
    """The clients' states before their first visits; `share` is f_s, (K,)."""

    def each(value: Tensor) -> Tensor:
        """The value for each client."""
        return value.expand(len(share), *value.shape)

    return ClientState(1 / share, torch.zeros(len(share), dtype=torch.bool), each(begin.anchor), each(begin.factor))
