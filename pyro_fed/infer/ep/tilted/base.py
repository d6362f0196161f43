"""What a client's inference is: from q and the cavity to a new Gaussian site."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise, State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.derivatives import Derivatives
from pyro_fed.infer.sites.gaussian_sites import absolute, at_mean, site_of
from pyro_fed.ops.gaussian import Gaussian


class Received(NamedTuple):
    """What C clients start from: the global q, their cavities q_-k, both with batch (C,)."""

    q: Gaussian
    cavity: Gaussian


class Tilted(NamedTuple):
    """What C clients found: new sites of batch (C,), which of them can be used (C,), figures for the record (C,)."""

    site: Gaussian
    usable: Tensor
    info: State


@dataclass(frozen=True, kw_only=True)
class Client(ABC):
    """Base of client inferences; their fields are settings of the algorithm of the same name.

    Args:
        derivatives: scores and curvatures in the algorithm's structure.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        exact: the same with full Hessians, where the model is small enough for them; else `derivatives`.
    """

    derivatives: Derivatives
    exact: Derivatives
    min_curvature: float

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of a client's round."""
        return ()

    @abstractmethod
    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """New sites of C clients."""


def tilted_scale(client: Client, problem: Problem, received: Received, data: ClientData) -> Gaussian:
    """A Newton step on the tilted densities from the mean of q: its curvature |H| and its end, (C,)."""
    mean = received.q.mean()
    moments = client.derivatives.of_likelihood(problem, mean[None], data.full_batch())
    tilted = site_of(moments, mean).product(received.cavity)
    metric = absolute(tilted, client.min_curvature)[0]
    return at_mean(metric, mean + type(metric)(metric.precision, tilted.score(mean)).mean())


def site_from(tilted: Gaussian, cavity: Gaussian, **info: Tensor) -> Tilted:
    """q̂ / q_-k, usable where q̂ is a distribution."""
    return Tilted(tilted.quotient(cavity), tilted.is_proper(), info)
