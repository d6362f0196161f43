"""Starts of chains at draws of p(θ) Π_s q_s(θ), or of the prior, and what is known of the posterior there.

The covariance A A' of that Gaussian is the preconditioner, and its mode θ* is where control variates and conducive
gradients are taken.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Start
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.client_state import ClientState
from pyro_fed.infer.langevin.conducive import Conducive
from pyro_fed.infer.langevin.gradients import TrustRegion, conducive_gradients
from pyro_fed.infer.surrogates.surrogates import fitted_surrogates, one_each
from pyro_fed.ops.gaussian import Gaussian


class FittedSurrogates(NamedTuple):
    """The surrogates q_s, batch (K,), and the Gaussian p(θ) Π_s q_s(θ)."""

    sites: Gaussian
    target: Gaussian


class Beginning(NamedTuple):
    """The starts of chains.

    Attributes:
        position: of the M chains, (M, D).
        anchor: θ*, (D,).
        factor: A, (D, D) or its diagonal (D,).
        gaussians: the surrogates and their product; () without surrogates.
    """

    position: Tensor
    anchor: Tensor
    factor: Tensor
    gaussians: FittedSurrogates | tuple[()] = ()


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
    """Starts at draws of p(θ) Π_s q_s(θ).

    `surrogates` is `Given`, or the algorithm whose final states are `start`; `precondition` says whether the Gaussian's
    covariance is the preconditioner.
    """
    gaussians = FittedSurrogates(*fitted_surrogates(problem, surrogates, start))
    target = gaussians.target
    position = target.sample(num_chains, generator).to(problem.dtype)
    factor = target.root() if precondition else torch.ones_like(target.eta)
    return Beginning(position, target.mean().to(problem.dtype), factor.to(problem.dtype), gaussians)


def new_clients(begin: Beginning, share: Tensor) -> ClientState:
    """The clients' states before their first visits; `share` is f_s, (K,)."""

    def each(value: Tensor) -> Tensor:
        """The value for each client."""
        return value.expand(len(share), *value.shape)

    return ClientState(1 / share, torch.zeros(len(share), dtype=torch.bool), each(begin.anchor), each(begin.factor))


def give_conducive_gradients(
    clients: ClientState, begin: Beginning, share: Tensor, conducive: Conducive | None
) -> ClientState:
    """The clients' states with conducive gradients, by f_s `share` (K,); unchanged if there are none."""
    if not begin.gaussians or conducive is None:
        return clients
    sites, target = begin.gaussians
    pull = conducive_gradients(one_each(sites, len(share)), share, begin.anchor, conducive.alpha)
    if conducive.trust is not None:
        metric = target.precision.to(begin.anchor.dtype)
        radius = torch.full_like(share, math.sqrt(len(begin.anchor)) + conducive.trust)
        pull = pull._replace(region=TrustRegion(metric.expand(len(share), *metric.shape), radius))
    return clients.with_conducive(pull)
