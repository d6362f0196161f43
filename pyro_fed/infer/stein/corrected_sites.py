"""Gaussian sites that are corrected at each particle: the targets of the accurate forms of DSVGD.

In coordinates z that whiten the Gaussian of `survey`, the site of client j at the n-th particle is its Gaussian
surrogate with a gradient of its own,

    ∇ log t_{j,n}(z) = η_j - Λ_j z + r_{j,n},    r_{j,n} = ∇ log p_j(z_n) - (η_j - Λ_j z_n)

where z_n is where client j left the particle at its last turn. Client k's target is

    ∇ log p̃_k = ∇ log p_0 + ∇ log p_k + Σ_{j≠k} ∇ log t_{j,n}

with p_0 and p_k exact. Particles that have come to rest have r_{j,n} exact for every j, so that the score at every
particle is that of the whole posterior. The fixed point is that of SVGD on the pooled data, whatever the surrogates and
whoever came last; with surrogates alone it depends on the last client. (The same argument as for SAGA and for
gradient-corrected local steps.) The surrogates only decide how fast, and how long local steps can safely be.

Particles that start apart have no surrogates: there the client's own rows stand for all, n / n_k times.

Source: Kassab & Simeone, Eq. (11) and (14), with these sites in place of kernel density estimates.
Letters: z `white`, Λ_j `precision`, η_j `eta`, r_j `residual`, Σ_j r_j `residuals`, n / n_k `own_weight`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.density.scores import likelihood_scores
from pyro_fed.infer.sites.whitening import Coordinates, site_scores
from pyro_fed.infer.stein.particles import ParticleAlgorithm
from pyro_fed.ops.balanced import Balanced
from pyro_fed.ops.kernels import MEDIAN_RBF
from pyro_fed.ops.stein import ksd_and_noise


@dataclass(frozen=True, kw_only=True)
class CorrectedSites(ParticleAlgorithm, Indicators):
    """Particles in whitened coordinates, and one corrected Gaussian site a client. Args: as for `ParticleAlgorithm`."""

    def mover(self, shared: State) -> Self:
        """This algorithm with the kernel that fits the start: far apart, particles share no linear map."""
        apart = bool(shared["apart"].any()) and isinstance(self.kernel, Balanced)
        return replace(self, kernel=MEDIAN_RBF) if apart else self

    def others(self, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """The other clients' sites, or the weight with which the own rows stand for theirs, and the coordinates."""
        apart = shared["apart"].to(problem.dtype)
        share = problem.num_rows / data.num_rows.clamp_min(1).to(problem.dtype)
        return {
            "mean": shared["mean"],
            "factor": shared["factor"],
            "own_weight": 1.0 + apart * (share - 1.0),
            "tilt": (1.0 - apart)[:, None, None] * (shared["residuals"] - local["residual"]),
            "precision": shared["precision"] - local["precision"],
            "eta": shared["eta"] - local["eta"],
        }

    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """The KSD of the particles from the client's target, or the client's likelihood scores there."""
        const, batch = self.others(problem, shared, local, data), data.full_batch()
        if kind == "ksd":
            discrepancy = problem.mapped(self.mover(shared).discrepancy, (0, 0, BATCHES))
            return {"ksd": discrepancy(shared["white"], const, batch)["ksd"]}
        return {"scores": problem.mapped(self.own_scores, (0, 0, BATCHES))(shared["white"], const, batch)}

    def positions(self, shared: State) -> Tensor:
        """In whitened coordinates."""
        return shared["white"]

    def target_scores(self, problem: Problem, white: Tensor, const: State, batch: Batch) -> Tensor:
        """The score of a client's target at whitened particles, (N, D), from `others`."""
        coordinates = Coordinates(const["mean"], const["factor"])
        batch = batch._replace(weight=const["own_weight"] * batch.weight)

        def log_target(z: Tensor) -> Tensor:
            return problem.log_joint(coordinates.model(z), batch, self.temperature)

        others = site_scores(const["precision"], const["eta"], white) + const["tilt"]
        return problem.vmap(grad(log_target))(white) + others

    def own_scores(self, problem: Problem, white: Tensor, const: State, batch: Batch) -> Tensor:
        """The client's own likelihood score, (N, D)."""
        coordinates = Coordinates(const["mean"], const["factor"])
        return coordinates.pull(likelihood_scores(problem, coordinates.model(white), batch)) / self.temperature

    def residual(self, problem: Problem, white: Tensor, const: State, batch: Batch) -> Tensor:
        """r_{k,n}: how far the client's score is from its surrogate's, (N, D), with `own_site` in `const`."""
        own = site_scores(const["own_precision"], const["own_eta"], white)
        return self.own_scores(problem, white, const, batch) - own

    def discrepancy(self, problem: Problem, white: Tensor, const: State, batch: Batch) -> State:
        """KSD of the particles from a client's target, and that of as many exact draws."""
        found, noise = ksd_and_noise(white, self.target_scores(problem, white, const, batch), self.kernel)
        return {"ksd": found, "noise": noise}


def own_site(local: State) -> State:
    """A client's own site, beside those of the others."""
    return {"own_precision": local["precision"], "own_eta": local["eta"]}
