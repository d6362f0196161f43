"""Laplace's form of partitioned variational inference: FedLap-Cov, with covariances, and FedLap, which is ADMM.

Source: Swaroop, Khan & Doshi-Velez (2025), *Connecting federated ADMM to Bayes*, ICLR. The client's step of partitioned
variational inference by the delta method, E_q[f] ≈ f(m), with sites t_k(θ) = exp(v_k'θ - θ'V_kθ / 2):

    θ_k ← arg max log p_k(θ) + log q_-k(θ),    q_-k ∝ q / t_k
    V_k ← (1 - δ) V_k + δ (-∇² log p_k(θ_k)),    v_k likewise, of the Gaussian at θ_k           FedLap-Cov
    V_k = 0,    v_k ← v_k + δ Λ_0 (θ_k - m)                                                      FedLap

with q ∝ p_0 Π_k t_k of mean m, and Λ_0 the prior's precision: without covariances the cavity is
-log q_-k = v_k'θ + ½ (θ - m)' Λ_0 (θ - m), and θ_k, v_k, m are the steps of ADMM with the prior's precision as its
penalty. Where nothing moves, θ_k = m and v_k = ∇ log p_k(m) (+ V_k m): the mode of the posterior, and with covariances
Laplace's approximation there; on conjugate Gaussian models FedLap-Cov's q is the posterior. Letters: δ `damping`.

Deviations: curvatures are Hessians, not Gauss-Newton; the prior is any prior, by a site where it is not Gaussian; one
over the clients for δ, the published choice too. On large models modes and diagonal curvatures are by
`sites.online_newton` with draws `NARROW` of an SD about its mean, where the paper runs Adam and then one pass for the
curvature. FedLap is slow where the prior is weak against a client's data: about as many rounds as their ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown, given
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.size import is_large
from pyro_fed.infer.ep import tilted
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.guided import GuidedFedEP
from pyro_fed.infer.ep.tilted import IVON, Laplace, Numerics, Received, TiltedInference
from pyro_fed.infer.ep.tilted.base import Tilted
from pyro_fed.infer.sites.gaussian_sites import gaussian

#: Spread of draws, in SDs, that stands for none: differences of scores over less are lost in single precision.
NARROW = 0.1


@dataclass(frozen=True, kw_only=True)
class Duals(TiltedInference):
    """An inference of which the mode alone is kept: sites without a precision.

    Args:
        client: the inference.
    """

    client: TiltedInference = Laplace()

    @property
    def deterministic(self) -> bool:
        """As the inference."""
        return self.client.deterministic

    def draw_noise(self, problem: Problem, num_rows: int, generator: Any) -> Noise:
        """The inference's."""
        return self.client.draw_noise(problem, num_rows, generator)

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """v_k = Λ_-k θ_k - η_-k, by which q_-k t_k has its mean at the tilted mode."""
        found, cavity = self.client.infer(problem, numerics, received, data, noise), received.cavity
        mode = found.site.product(cavity).mean()
        site = type(cavity)(torch.zeros_like(cavity.precision), -cavity.score(mode))
        return found._replace(site=site)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedLapCov(FedEP):
    """FedLap with covariances: partitioned variational inference by Laplace's approximation at each client.

    Its settings are those of `FedEP`; `client` is "laplace", and on large models "ivon" with narrow draws.

    References:
        Swaroop et al. (2025), Connecting federated ADMM to Bayes.

    Example:
        >>> idata = pf.run(pf.FedLapCov(), fed)
    """

    guided: ClassVar[type[GuidedFedEP] | None] = None

    client: TiltedInference | tilted.Name = Laplace()
    start: Literal["auto", "laplace", "prior", "fedavg"] = "prior"

    def fitted(self, problem: Problem) -> Algorithm:
        """For a large model: stochastic gradients, from the point that averaging finds."""
        own = given(self)
        if (
            not is_large(problem, self.num_points, self.full_dim)
            or "client" in own
            or self.structure(problem) == "full"
        ):
            return self
        start: dict[str, Any] = {} if "start" in own else {"start": "fedavg"}
        return cast(Algorithm, replace(self, client=IVON(spread=NARROW), **start))


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedLap(FedLapCov):
    """FedLap: ADMM whose penalty is the prior's precision; the mode, a point and no posterior.

    Its settings are those of `FedEP`.

    References:
        Swaroop et al. (2025), Connecting federated ADMM to Bayes.

    Example:
        >>> idata = pf.run(pf.FedLap(), fed)
    """

    draws_are: ClassVar[str] = "point"

    @property
    def inference(self) -> TiltedInference:
        """The client's modes."""
        return Duals(client=super().inference)

    def default_rounds(self, num_clients: int) -> int:
        """Two hundred: see the module's header."""
        return 200

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """No criterion: q's SDs, in which its moves are measured, are the prior's."""
        return None

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The mean of q, (1, 1, D); its covariance is the prior's."""
        return gaussian(shared).mean()[None, None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """None: it is a point."""
        return None
