"""Gaussian sites that are corrected at each particle, and the resulting tilted target of a client.

    ∇ log t_{k,n}(z) = η_k - Λ_k z + r_{k,n}                                   site of client k at particle n
    log p̃_k = log p_0 + w_k log p_k / α + Σ_{j≠k} log t_j                      target of client k, Eq. (11)

in coordinates z that whiten a Gaussian. w_k is one. If particles started apart there are no sites, and the client's
rows represent all rows: w_k = n / n_k.

Letters: Λ `precision`, η `eta`, r `residual`, w `own_weight`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.states import State
from pyro_fed.density.derivatives import clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.ops.step_sizes import AdaGradState
from pyro_fed.ops.whitening import Coordinates, site_scores

#: Entries of the server's state that clients receive: those of `Received`, and AdaGrad's state.
SENT = ("white", "residuals", *AdaGradState._fields, "mean", "factor", "precision", "eta", "apart", "pace", "near")


class Site(NamedTuple):
    """A client's site t_k, or the product of several; leading axes are clients."""

    precision: Tensor  # Λ (..., D, D) or (..., D)
    eta: Tensor  # η (..., D)
    residual: Tensor  # r (..., N, D)

    def surrogate_scores(self, white: Tensor) -> Tensor:
        """η - Λ z, without the correction, at particles (..., N, D)."""
        return site_scores(self.precision, self.eta, white)

    def corrected(self, own: Tensor, white: Tensor) -> Site:
        """The site, made exact at particles (..., N, D) by its residual, from the likelihood's scores `own` there."""
        return self._replace(residual=own - self.surrogate_scores(white))


class Received(NamedTuple):
    """What a client receives, without AdaGrad's state; leading axes are clients."""

    white: Tensor  # particles z (..., N, D)
    coordinates: Coordinates  # of z
    sites: Site  # Π_j t_j
    pace: Tensor  # factor of a step, (...)
    apart: Tensor  # one if particles started apart, and have no sites, (...)
    near: Tensor  # one if particles started under the Gaussian nearest to a posterior of one mode, (...)

    @classmethod
    def of(cls, shared: State) -> Received:
        """The entries in the server's state, or in what a client receives of it."""
        white = shared["white"]
        sites = Site(shared["precision"], shared["eta"], shared["residuals"])
        coordinates = Coordinates(shared["mean"], shared["factor"])
        return cls(white, coordinates, sites, shared["pace"].to(white), shared["apart"].to(white), shared["near"])


class TiltedTarget(NamedTuple):
    """The target p̃_k of a client, without its likelihood; leading axes are clients."""

    coordinates: Coordinates  # of z
    others: Site  # Π_{j≠k} t_j
    own_weight: Tensor  # w (...)

    @classmethod
    def of(cls, received: Received, own: Site, all_by_own: Tensor) -> TiltedTarget:
        """Each client's target, from its own site; `all_by_own` is n / n_k (...), all clients' rows over its own."""
        sites, apart = received.sites, received.apart
        residual = (1.0 - apart)[:, None, None] * (sites.residual - own.residual)
        others = Site(sites.precision - own.precision, sites.eta - own.eta, residual)
        return cls(received.coordinates, others, 1.0 + apart * (all_by_own - 1.0))

    def scores(self, problem: Problem, white: Tensor, batch: Batch, temperature: float) -> Tensor:
        """∇ log p̃_k at particles (N, D), Eq. (11) and (14), by a batch of the client's rows."""
        batch = batch._replace(weight=self.own_weight * batch.weight)

        def log_own(z: Tensor) -> Tensor:
            return problem.log_joint(self.coordinates.model(z), batch, temperature)

        others = self.others.surrogate_scores(white) + self.others.residual
        own: Tensor = problem.vmap(grad(log_own))(white)
        return own + others


class Arrival(NamedTuple):
    """The data of a turn when the particles reach a client; leading axes are clients."""

    received: Received  # what the client received
    target: TiltedTarget  # p̃_k
    own: Tensor  # scores of its likelihood at the particles, (C, N, D)
    site: Site  # t_k, which is exact at the particles

    @classmethod
    def of(cls, problem: Problem, shared: State, local: State, data: ClientData, temperature: float) -> Arrival:
        """The data by what clients received and keep, and by their rows."""
        received, site = Received.of(shared), entries_as(Site, local)
        all_by_own = problem.num_rows / data.num_rows.clamp_min(1).to(problem.dtype)
        own = client_scores(problem, received.coordinates, received.white, data, temperature)
        target = TiltedTarget.of(received, site, all_by_own)
        return cls(received, target, own, site.corrected(own, received.white))


def client_scores(
    problem: Problem, coordinates: Coordinates, white: Tensor, data: ClientData, temperature: float
) -> Tensor:
    """∇ log p_k / α at the particles, (C, N, D)."""
    scores = clients_likelihood_scores(problem, coordinates.model(white), data)
    return coordinates.pull(scores) / temperature


def scores_by_sites(problem: Problem, white: Tensor, coordinates: Coordinates, sites: Site) -> Tensor:
    """Scores of log p_0 + Σ_j log t_j at particles (N, D), without any rows."""
    prior = coordinates.pull(prior_scores(problem, coordinates.model(white)))
    return prior + sites.surrogate_scores(white) + sites.residual
