"""What a tilted inference is: from q and the cavity to a new Gaussian site, at many clients at once.

    q̂_k ≈ p_k q_-k,    t̂_k = q̂_k / q_-k                        Guo et al., Algorithm 4, step 3; Section 2.2.2

An inference has its own settings alone; how derivatives are computed comes from the algorithm that asks (`Numerics`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.gaussian_sites import (
    SpreadGaussian,
    absolute,
    at_mean,
    likelihood_points,
    site_of,
    with_prior,
)
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.moments import Moments


class Received(NamedTuple):
    """What C clients start from.

    Attributes:
        q: the global q, the same for all, with batch (C,).
        cavity: their cavities q_-k, with batch (C,).
        pace: factors of the rate of stochastic steps in this round, (C,); None is one.
    """

    q: Gaussian
    cavity: Gaussian
    pace: Tensor | None = None


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


class Numerics(NamedTuple):
    """How the algorithm that asks for an inference has derivatives and expectations computed.

    Args:
        derivatives: scores and curvatures in the algorithm's structure.
        exact: the same with full Hessians, where the model is small enough for them; else `derivatives`.
        num_points: Sobol points for expectations.
        prior_share: power of the prior that is part of each client's likelihood, (C,); None is zero.
    """

    derivatives: Derivatives
    exact: Derivatives
    num_points: int
    prior_share: Tensor | None = None

    def expected(self, problem: Problem, q: Gaussian, data: ClientData) -> Moments:
        """Expected log-likelihoods, scores and curvatures of C clients under their Gaussians.

        Args:
            problem: the model's densities.
            q: proper, (C,).
            data: the clients' rows.
        """
        found = self.derivatives.under(problem, q.mean(), q.root(), self.num_points, data) if q.dense else None
        if found is not None and self.prior_share is None:
            return found
        points = likelihood_points(problem, q, self.num_points)
        moments = found or self.derivatives.of_likelihood(problem, points, data.full_batch())
        return with_prior(self.derivatives, problem, points, moments, self.prior_share)


def numerics_of(algorithm: SpreadGaussian, problem: Problem, prior_share: Tensor | None = None) -> Numerics:
    """How an algorithm has derivatives and expectations computed for a model.

    Args:
        algorithm: whose settings say it.
        problem: the model's densities.
        prior_share: see `Numerics`.
    """
    derivatives = algorithm.derivatives()
    return Numerics(derivatives, derivatives.exact(problem.dim), algorithm.num_points, prior_share)


class TiltedInference(Variant):
    """How a client approximates its tilted distribution p_k q_-k, its likelihood times the cavity, by a Gaussian.

    A kind of one's own is a frozen, keyword-only dataclass of settings with the method `infer`, given as an instance:
    ``pf.FedEP(client=Mine())``.
    """

    what: ClassVar[str] = "tilted inference"
    door: ClassVar[str] = "pf.tilted"

    #: Whether it works by gradients alone, for networks: agents begin where averaging ends, and a few points are tried
    #: first for the prior's expectations, which are enough for a Gaussian prior.
    by_gradients: ClassVar[bool] = False
    #: Whether it minimises the client's free energy, KL(q̂ ‖ p_k q_-k).
    minimises_free_energy: ClassVar[bool] = False
    #: Whether curvatures of likelihoods are computed as the algorithm's setting `curvature` says.
    takes_curvature: ClassVar[bool] = True
    #: Rows of all clients by which it works; None is all.
    few_rows: int | None = None
    #: Of an agent without a server (`pf.update`): rounds that the acceleration of its steps remembers.
    memory: int = 1
    #: Of an agent without a server: factor of the rate from one round to the next.
    round_decay: float = 1.0

    def by_few_rows(self, count: int) -> Self:
        """The same by so many rows of all clients.

        Args:
            count: rows.

        Raises:
            SettingError: it takes all rows.
        """
        raise SettingError(f"{type(self).__name__}: it takes all rows; start='few_rows' is of client='newton'")

    @property
    def newton_steps(self) -> int:
        """How many expected Newton steps an answer is made of; 0: it is made otherwise.

        A change by such steps is a step towards the common fixed point, which a server takes whole, accelerates, and
        takes back where it was too long.
        """
        return 0

    @property
    def default_rounds(self) -> int:
        """Rounds of a run with a server that is given no number of them, where the inference is random."""
        return 20

    @property
    def agents_rounds(self) -> int:
        """The same without a server, at most."""
        return 100

    @property
    def isotropic(self) -> bool:
        """Whether the precision of q̂ is the cavity's and a multiple of the identity."""
        return False

    @property
    def needs_diagonal(self) -> bool:
        """Whether its settings are those of a diagonal q."""
        return False

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

    def objections(self, q: Gaussian, changes: Gaussian, values: Tensor | None) -> message_limits.Objections:
        """Why clients' changes of their sites cannot be honest: reason → the clients (C,) that it holds for.

        Args:
            q: what they received, (C,), alike.
            changes: Δ_k, (C,).
            values: their expected log-likelihoods, (C,), where they say them.
        """
        return message_limits.natural(type(q)(q.precision[:1], q.eta[:1]), changes, values)

    def figures(self, before: Gaussian, after: Gaussian) -> dict[str, float]:
        """Figures of a round besides those of the algorithm, by q before and after it."""
        return {}

    def findings(self, record: Record, problem: Problem) -> list[Finding]:
        """What speaks against a result besides what the algorithm says."""
        return []


def tilted_scale(numerics: Numerics, problem: Problem, received: Received, data: ClientData) -> Gaussian:
    """A Newton step on the tilted densities from the mean of q: its curvature |H| and its end, (C,)."""
    mean = received.q.mean()
    moments = numerics.derivatives.of_likelihood(problem, mean[None], data.full_batch())
    tilted = site_of(moments, mean).product(received.cavity)
    metric = absolute(tilted)[0]
    return at_mean(metric, mean + type(metric)(metric.precision, tilted.score(mean)).mean())


def site_from(tilted: Gaussian, cavity: Gaussian, **info: Tensor) -> Tilted:
    """q̂ / q_-k, usable where q̂ is a distribution."""
    return Tilted(tilted.quotient(cavity), tilted.is_proper(), info)
