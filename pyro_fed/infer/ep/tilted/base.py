"""What a tilted inference is: from q and the cavity to a new Gaussian site, at many clients at once.

    q̂_k ≈ p_k q_-k,    t_k = q̂_k / q_-k                        Guo et al., Algorithm 3, step 3; Section 2.2.2

An inference has its own settings alone; how derivatives are computed comes from the algorithm that asks (`Numerics`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import Variant
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.derivatives import Derivatives
from pyro_fed.infer.sites.gaussian_sites import absolute, at_mean, site_of
from pyro_fed.ops.gaussian import Gaussian

#: The kinds by the names that the setting `client` knows them under.
Name = Literal["newton", "laplace", "fisher", "mcmc", "identity", "ngvi", "svi", "ivon"]


class Received(NamedTuple):
    """What C clients start from.

    Attributes:
        q: the global q, the same for all, with batch (C,).
        cavity: their cavities q_-k, with batch (C,).
    """

    q: Gaussian
    cavity: Gaussian


class Tilted(NamedTuple):
    """What C clients found.

    Attributes:
        site: their new sites, with batch (C,).
        usable: which of these can be used, (C,).
        info: figures for the record, (C,) each.
    """

    site: Gaussian
    usable: Tensor
    info: State


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How the algorithm that asks for an inference has derivatives and expectations computed, and steps guarded.

    Args:
        derivatives: scores and curvatures in the algorithm's structure.
        exact: the same with full Hessians, where the model is small enough for them; else `derivatives`.
        num_points: Sobol points for expectations.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        min_fraction: a backtracked step smaller than this is not made.
        margin: smallest eigenvalue that a step may leave of a precision, relative to what it was.
    """

    derivatives: Derivatives
    exact: Derivatives
    num_points: int
    min_curvature: float
    min_fraction: float
    margin: float


class TiltedInference(Variant):
    """How a client approximates its tilted distribution p_k q_-k, its likelihood times the cavity, by a Gaussian.

    A kind of one's own is a frozen, keyword-only dataclass of settings with the method `infer`, given as an instance:
    ``pf.FedEP(client=Mine())``.
    """

    what: ClassVar[str] = "tilted inference"
    door: ClassVar[str] = "pf.tilted"

    @property
    def deterministic(self) -> bool:
        """Whether it has no randomness, so that none need be drawn."""
        return type(self).draw_noise is TiltedInference.draw_noise

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of one client's round.

        Args:
            problem: the model.
            num_rows: how many rows the client has.
            generator: of (seed, round, client).

        Returns:
            A pytree of tensors with leading step axes, or ().
        """
        return ()

    @abstractmethod
    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """New sites of C clients.

        Args:
            problem: the model's densities.
            numerics: how the algorithm has derivatives and expectations computed.
            received: q and the cavities, (C,).
            data: the clients' rows.
            noise: their randomness, (steps, C, ...).
        """


@dataclass(frozen=True)
class Around:
    """What asks another inference and makes a site of its answer, by an `infer` of its own; no client to be chosen."""

    client: TiltedInference

    @property
    def deterministic(self) -> bool:
        """As the inference."""
        return self.client.deterministic

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The inference's."""
        return self.client.draw_noise(problem, num_rows, generator)


def tilted_scale(numerics: Numerics, problem: Problem, received: Received, data: ClientData) -> Gaussian:
    """A Newton step on the tilted densities from the mean of q: its curvature |H| and its end, (C,)."""
    mean = received.q.mean()
    moments = numerics.derivatives.of_likelihood(problem, mean[None], data.full_batch())
    tilted = site_of(moments, mean).product(received.cavity)
    metric = absolute(tilted, numerics.min_curvature)[0]
    return at_mean(metric, mean + type(metric)(metric.precision, tilted.score(mean)).mean())


def site_from(tilted: Gaussian, cavity: Gaussian, **info: Tensor) -> Tilted:
    """q̂ / q_-k, usable where q̂ is a distribution."""
    return Tilted(tilted.quotient(cavity), tilted.is_proper(), info)
