"""The interface of a tilted inference, which computes Gaussian sites of a batch of clients from q and their cavities.

    q̂_k ≈ p_k q_-k,    t̂_k = q̂_k / q_-k                        Guo et al., Algorithm 4, step 3; Section 2.2.2

The calling algorithm determines how derivatives are computed (`Numerics`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant
from pyro_fed.density.derivatives import Derivatives, finite_or
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import (
    SpreadGaussian,
    absolute,
    at_mean,
    site_of,
    spread_points,
    with_prior,
)
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import Gaussian

#: Factor on the number of points if the scores of rows are discontinuous: with 128 points, sums over few rows change by
#: 0.002 SDs when a point crosses a discontinuity, and runs do not converge.
POINTS_OF_JUMPS = 8


class Received(NamedTuple):
    """The inputs of C clients.

    Attributes:
        q: the global q, repeated for each client, (C,).
        cavity: the cavities q_-k, (C,).
        pace: factors on the rate of stochastic steps in this round, (C,); None is 1.
    """

    q: Gaussian
    cavity: Gaussian
    pace: Tensor | None = None


class Tilted(NamedTuple):
    """The result of C clients: new sites (C,), whether each is usable (C,), and figures for the record, (C,) each."""

    site: Gaussian
    usable: Tensor
    info: State


class Numerics(NamedTuple):
    """The calling algorithm's computation of derivatives and expectations.

    Args:
        derivatives: scores and curvatures in the algorithm's structure.
        full_hessians: scores and full Hessians if they are Hessians of a small enough model; else `derivatives`.
        num_points: Sobol points for expectations.
        prior_share: power of the prior that is part of each client's likelihood, (C,); None is 0.
    """

    derivatives: Derivatives
    full_hessians: Derivatives
    num_points: int
    prior_share: Tensor | None = None

    def expected(self, problem: Problem, q: Gaussian, data: ClientData) -> Moments:
        """Expected log-likelihoods, scores and curvatures of C clients under their proper Gaussians q (C,)."""
        integrated = self.derivatives.under(problem, q.mean(), q.root(), data) if q.dense else None
        if integrated is not None and self.prior_share is None and bool(integrated.finite().all()):
            return integrated
        points = spread_points(q, self.num_points * (POINTS_OF_JUMPS if problem.traits.non_smooth_rows else 1))
        moments = finite_or(integrated, lambda: self.derivatives.of_likelihood(problem, points, data.full_batch()))
        return with_prior(self.derivatives, problem, points, moments, self.prior_share)


def numerics_of(algorithm: SpreadGaussian, problem: Problem, prior_share: Tensor | None = None) -> Numerics:
    """An algorithm's computation of derivatives and expectations for a model; for `prior_share` see `Numerics`."""
    derivatives = algorithm.derivatives()
    return Numerics(derivatives, derivatives.exact(problem.dim), algorithm.num_points, prior_share)


class TiltedInference(Variant):
    """A Gaussian approximation of a client's tilted distribution p_k q_-k, its likelihood times the cavity.

    To write one, define a frozen, keyword-only dataclass of settings with the method `infer`, and pass an instance:
    ``pf.FedEP(client=MyInference())``.
    """

    what: ClassVar[str] = "tilted inference"
    door: ClassVar[str] = "pf.infer.tilted"

    #: Whether it uses gradients only, for networks. Agents then start from averaging. The prior's expectations are
    #: first computed at a few points, which suffice for a Gaussian prior.
    by_gradients: ClassVar[bool] = False
    #: Whether it minimises the client's free energy, KL(q̂ ‖ p_k q_-k).
    minimises_free_energy: ClassVar[bool] = False
    #: Whether curvatures of likelihoods are computed by the algorithm's setting `curvature`.
    takes_curvature: ClassVar[bool] = True
    #: Number of rows of all clients that it uses; None is all.
    few_rows: int | None = None
    #: Rounds in the history of the acceleration of an agent without a server (`pf.infer.update`).
    memory: int = 1
    #: Factor on an agent's rate from one round to the next.
    round_decay: float = 1.0

    @property
    def newton_steps(self) -> int:
        """Number of expected Newton steps per round; 0 for other inferences.

        A change by such steps is a step towards the common fixed point. The server takes it with δ = 1, accelerates it,
        and rejects it if it was too long.
        """
        return 0

    @property
    def default_rounds(self) -> int:
        """Default number of rounds of a run with a server, if the inference is random."""
        return 20

    @property
    def agents_rounds(self) -> int:
        """Default largest number of rounds of a run without a server, if the inference is random."""
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
        """Whether it has no randomness, so that no noise is drawn."""
        return type(self).draw_noise is TiltedInference.draw_noise

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """All randomness of one client's round.

        Args:
            problem: the model.
            num_rows: how many rows the client has.
            generator: seeded by (seed, round, client).

        Returns:
            A pytree of tensors with leading step axes, or ().
        """
        return ()

    @abstractmethod
    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """New sites of C clients.

        Args:
            problem: the model's densities.
            numerics: the algorithm's computation of derivatives and expectations.
            received: q and the cavities, (C,).
            data: the clients' rows.
            noise: the clients' randomness, (steps, C, ...).
        """

    def objections(self, q: Gaussian, changes: Gaussian, values: Tensor | None) -> message_limits.Objections:
        """Reasons to reject clients' changes of their sites, with the clients (C,) that each applies to.

        Args:
            q: the Gaussian that the clients received, repeated, (C,).
            changes: Δ_k, (C,).
            values: the clients' expected log-likelihoods, (C,), if they send them.
        """
        return message_limits.natural(type(q)(q.precision[:1], q.eta[:1]), changes, values)

    def figures(self, before: Gaussian, after: Gaussian) -> dict[str, float]:
        """Figures of a round in addition to the algorithm's, from q before and after it."""
        return {}

    def findings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about a result in addition to the algorithm's."""
        return []


def one_newton_step(numerics: Numerics, problem: Problem, received: Received, data: ClientData) -> Gaussian:
    """N(mean after one Newton step, |H|⁻¹), (C,), of the tilted densities; the step and H are at the mean of q."""
    mean = received.q.mean()
    moments = numerics.derivatives.of_likelihood(problem, mean[None], data.full_batch())
    tilted = site_of(moments, mean).product(received.cavity)
    metric = absolute(tilted)[0]
    return at_mean(metric, mean + type(metric)(metric.precision, tilted.score(mean)).mean())


def site_from(tilted: Gaussian, cavity: Gaussian, **info: Tensor) -> Tilted:
    """q̂ / q_-k, usable if q̂ is a distribution."""
    return Tilted(tilted.quotient(cavity), tilted.is_proper(), info)
