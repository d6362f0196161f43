"""Gaussian sites that are corrected at each particle, and the tilted target that they make for a client.

    ∇ log t_{k,n}(z) = η_k - Λ_k z + r_{k,n}                                   site of client k at particle n
    log p̃_k = log p_0 + w_k log p_k / α + Σ_{j≠k} log t_j                      target of client k, Eq. (11)

in coordinates z that whiten a Gaussian. w_k is one. Where particles started apart there are no sites, and the client's
rows stand for all: w_k = n / n_k.

Letters: Λ `precision`, η `eta`, r `residual`, w `own_weight`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.scores import prior_scores
from pyro_fed.infer.sites.whitening import Coordinates, site_scores


class Site(NamedTuple):
    """A client's site t_k, or the product of several; leading axes are clients.

    Args:
        precision: Λ (..., D, D) or (..., D).
        eta: η (..., D).
        residual: r (..., N, D).
    """

    precision: Tensor
    eta: Tensor
    residual: Tensor

    @classmethod
    def of(cls, local: State) -> Site:
        """A client's, from its state."""
        return cls(local["precision"], local["eta"], local["residual"])

    def surrogate_scores(self, white: Tensor) -> Tensor:
        """η - Λ z, without the correction, at particles (..., N, D)."""
        return site_scores(self.precision, self.eta, white)

    def corrected(self, own: Tensor, white: Tensor) -> Site:
        """With the residual that makes it exact at particles (..., N, D), from the likelihood's scores `own` there."""
        return self._replace(residual=own - self.surrogate_scores(white))


class Received(NamedTuple):
    """What a client is sent but for AdaGrad's state; leading axes are clients.

    Args:
        white: particles z (..., N, D).
        coordinates: of z.
        sites: Π_j t_j.
        pace: share of a step that is taken, (...).
        apart: one where particles started apart, and have no sites, (...).
        near: one where particles started under the Gaussian nearest to a posterior of one mode, (...).
    """

    white: Tensor
    coordinates: Coordinates
    sites: Site
    pace: Tensor
    apart: Tensor
    near: Tensor

    @classmethod
    def of(cls, shared: State) -> Received:
        """From the server's state, or from what of it was sent."""
        white = shared["white"]
        sites = Site(shared["precision"], shared["eta"], shared["residuals"])
        coordinates = Coordinates(shared["mean"], shared["factor"])
        return cls(white, coordinates, sites, shared["pace"].to(white), shared["apart"].to(white), shared["near"])


class TiltedTarget(NamedTuple):
    """The target p̃_k of a client, but for its likelihood; leading axes are clients.

    Args:
        coordinates: of z.
        others: Π_{j≠k} t_j.
        own_weight: w (...).
    """

    coordinates: Coordinates
    others: Site
    own_weight: Tensor

    @classmethod
    def of(cls, received: Received, own: Site, all_by_own: Tensor) -> TiltedTarget:
        """Each client's target.

        Args:
            received: what the clients were sent.
            own: their sites.
            all_by_own: rows of all clients over their own, n / n_k (...).
        """
        sites, apart = received.sites, received.apart
        residual = (1.0 - apart)[:, None, None] * (sites.residual - own.residual)
        others = Site(sites.precision - own.precision, sites.eta - own.eta, residual)
        return cls(received.coordinates, others, 1.0 + apart * (all_by_own - 1.0))


def scores_by_sites(problem: Problem, white: Tensor, coordinates: Coordinates, sites: Site) -> Tensor:
    """Scores of log p_0 + Σ_j log t_j at particles (N, D): no rows are taken."""
    prior = coordinates.pull(prior_scores(problem, coordinates.model(white)))
    return prior + sites.surrogate_scores(white) + sites.residual
