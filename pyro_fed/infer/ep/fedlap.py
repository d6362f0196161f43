"""Partitioned variational inference by Laplace approximations: FedLap-Cov, with covariances, and FedLap, which is ADMM.

Source: Swaroop, Khan & Doshi-Velez (2025), *Connecting federated ADMM to Bayes*; derived here from the client's step
of partitioned variational inference by the delta method, E_q[f] ≈ f(m), with sites t_k(θ) = exp(v_k'θ - θ'V_kθ / 2):

    θ_k ← arg max log p_k(θ) + log q_-k(θ),    q_-k ∝ q / t_k
    V_k ← (1 - δ) V_k + δ (-∇² log p_k(θ_k)),    the same for v_k of the Gaussian at θ_k        FedLap-Cov
    V_k = 0,    v_k ← v_k + δ Λ_0 (θ_k - m)                                                      FedLap

Here m is the mean of q ∝ p_0 Π_k t_k and Λ_0 the prior's precision. Without covariances the cavity is
-log q_-k = v_k'θ + ½ (θ - m)' Λ_0 (θ - m), and θ_k, v_k, m are the steps of ADMM with the prior's precision as its
penalty. At a fixed point θ_k = m and v_k = ∇ log p_k(m) (+ V_k m): m is the mode of the posterior, and with covariances
q is the Laplace approximation there. On conjugate Gaussian models FedLap-Cov's q is the posterior. The default δ is one
over the number of clients, because FedLap with δ = 1 and K ≥ 3 equal clients diverges: if H_k ≫ Λ_0 a round multiplies
the error of Σ_k v_k by -(K - 1). FedLap is slow if the prior is weak compared with a client's data: the error falls by
a factor of e in about K (1 + H_k / Λ_0) rounds.

FedLap's q has the prior's width, which does not show how far its point is from the mode in posterior SDs. With
e_k = ∇ log p_k(m) - v_k the score at m is Σ_k e_k. Each client's tilted mode is θ_k = m + P_k⁻¹ e_k with
P_k = Λ_0 + H_k, which is at most the posterior's precision P = Λ_0 + Σ_k H_k. Each client sends its term of the bound

    ‖m - mode‖_P = ‖Σ_k e_k‖_(P⁻¹) ≤ Σ_k ‖e_k‖_(P_k⁻¹) = Σ_k ‖θ_k - m‖_(P_k)                     `gap`

which holds for log densities that are quadratic between m and θ_k, with H_k ≥ 0. A run has converged when the bound is
below the tolerance.

Deviations: curvatures are Hessians; a prior that is not Gaussian is replaced by its site at m, whose precision may be
indefinite far from the mode: the step is then shortened so that q is a distribution, and the round does not count as
converged (`steps.Backtracked`). The paper's prior is Gaussian. On large models, modes and diagonal curvatures are
computed by `sites.online_newton` with draws and steps of `CURVATURE_SPREAD` SDs, without a convergence criterion;
FedLap's clients keep the curvatures, which set the length of these steps. The sites of a start become duals with the
same point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.findings import unrestricted_pass
from pyro_fed.infer.ep.settings import Controlled, Converging, Optimising, WarmStarted
from pyro_fed.infer.ep.tilted import Laplace, Received, Tilted, TiltedInference
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.gaussian import Gaussian

#: Spread of the draws in SDs, close to zero; smaller differences of scores are lost in single precision. It also limits
#: the steps: curvatures hold within it, and under a weak prior one SD is a long way (a network of 1,510 parameters on
#: ten clients reached an accuracy of 0.38 with steps of one SD, and 0.96 with these).
CURVATURE_SPREAD = 0.1


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedLapCov(Converging, WarmStarted, Optimising, Controlled):
    """FedLap with covariances: partitioned variational inference by a Laplace approximation at each client.

    Args:
        client: how the clients approximate: "laplace", and on large models "ivon" with narrow draws.
        start: as of `FedEP`, "prior" by default: sites of one.

    References:
        Swaroop et al. (2025), Connecting federated ADMM to Bayes.

    Example:
        >>> idata = pf.run(pf.infer.FedLapCov(), fed)
    """

    client: TiltedInference | str = Laplace()
    start: Literal["auto", "laplace", "prior", "fedavg", "few_rows"] = "prior"

    def default_rounds(self, num_clients: int) -> int:
        """10 K, at least 50: a round closes 1 / K of the distance, and e⁻¹⁰ is below usual tolerances."""
        return max(50, 10 * num_clients) if self.solver.deterministic else 20

    def points(self, q: Gaussian) -> Tensor:
        """The mean alone, (1, 1, D), at which a prior that is not Gaussian is expanded."""
        return q.mean()[None]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedLap(FedLapCov):
    """FedLap: ADMM whose penalty is the prior's precision; it finds the mode, not a posterior.

    Args:
        tolerance: the run has converged when the point is at most this many SDs of the posterior from the mode.
        client: how the clients find their modes: "laplace", and on large models "ivon" with narrow draws.

    References:
        Swaroop et al. (2025), Connecting federated ADMM to Bayes.

    Example:
        >>> idata = pf.run(pf.infer.FedLap(), fed)
    """

    draws_are: ClassVar[str] = "point"
    may_be_infinite: ClassVar[frozenset[str]] = FedLapCov.may_be_infinite | {"gap"}

    def new_sites(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Compute v_k = Λ_-k θ_k - η_-k, which puts the mean of q_-k t_k at the tilted mode θ_k, and the gap of θ_k."""
        answer, cavity = super().new_sites(problem, received, data, noise), received.cavity
        tilted, m = answer.site.product(cavity), received.q.mean()
        mode = tilted.mean()
        site = type(cavity)(torch.zeros_like(cavity.precision), -cavity.score(mode))
        gap = ((mode - m) * tilted.score(m)).sum(-1).clamp_min(0).sqrt()  # the score is P_k (θ_k - m)
        return answer._replace(site=site, info={**answer.info, "gap": gap, "curvature": answer.site.precision})

    def default_rounds(self, num_clients: int) -> int:
        """At most 500 rounds, because convergence is slow (see the module's docstring)."""
        return 500

    def first_states(self, problem: Problem, q: Gaussian, prior: Gaussian, sites: Gaussian) -> tuple[State, State]:
        """The first states, with sites replaced by duals that leave the point unchanged."""
        curvature = sites.precision
        if bool((curvature != 0).any()):
            sites = type(sites)(torch.zeros_like(curvature), sites.score(q.mean()))
            q = prior.product(sites.product_over(0))
        shared, local = super().first_states(problem, q, prior, sites)
        learnt = {} if self.solver.deterministic else {"curvature": curvature.clone()}
        return shared | {"gap": torch.full_like(shared["cut"], torch.inf)}, local | learnt

    def begin_at(self, received: State, local: State, cavity: Gaussian) -> Gaussian:
        """Gaussians at m; for inferences that learn curvatures, with the curvatures that each client has kept."""
        q = gaussian(received)
        if "curvature" not in local:
            return q
        precision = cavity.precision + local["curvature"]
        return type(q)(precision, precision * q.mean())

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute the change as in `FedEP`, and the distance of the client's mode from the server's point."""
        message, new_local, info = super().local_step(problem, shared, local, data, noise)
        usable, curvature = message["usable"], info.pop("curvature")
        if "curvature" in local:
            new_local["curvature"] = torch.where(usable.unsqueeze(-1), curvature, local["curvature"])
        return message | {"gap": torch.where(usable, info["gap"], 0.0).nan_to_num()}, new_local, info

    def settle(self, feedback: State, local: State) -> State:
        """Update the sites as in `FedEP`, and keep the client's curvature."""
        return super().settle(feedback, local) | {name: local[name] for name in ("curvature",) if name in local}

    def clippable_part(self, messages: State) -> State:
        """The change without the distance, which would let a single client end a run."""
        return {name: value for name, value in super().clippable_part(messages).items() if name != "gap"}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Combine as in `FedEP`, and sum the terms of the bound, which is infinite if unknown."""
        old_gap = shared["gap"]
        is_known = "gap" in messages and bool(messages["usable"].all())
        gap = messages["gap"].sum().to(old_gap) if is_known else torch.full_like(old_gap, torch.inf)
        return super().combine(shared, messages, weights) | {"gap": gap}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The figures of `FedEP`, and `bound`, on the previous point's distance from the mode in posterior SDs."""
        return {**super().monitor(before, after), "bound": float(after["gap"])}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the bound is below the tolerance in a full pass over the clients."""
        if not self.solver.deterministic:
            return None
        window = math.ceil(1 / figures[-1]["share"])
        last = figures[-window:]
        return unrestricted_pass(last, window) and sum(f["bound"] for f in last) < self.tolerance

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """The warnings of `FedEP`, and one about the distance of the point from the mode."""
        notes = super().warnings(record, problem)
        if record.converged is False or not self.solver.deterministic:
            sentence = sentences.point_not_converged if self.solver.deterministic else sentences.point_by_random_steps
            notes.append(sentence(rounds=len(record.figures), sds=record.latest.get("bound", math.inf)))
        return notes

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The mean of q, (1, 1, D); its covariance is the prior's."""
        return gaussian(shared).mean()[None, None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """None, because the result is a point."""
        return None
