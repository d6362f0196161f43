r"""Expectation propagation over clients: the rounds of FedEP, PVI, FedSEP, FedPA, BCM, FedLap and BayesADMM.

Source: Guo et al., *Federated learning as variational inference*, Algorithms 1, 3 and 4; Vehtari et al. (2020). The
approximation is q = t_0 Π_k t_k, a product of Gaussian sites, whose natural parameters add up. One round:

    server   prepare      Δ_0 = (site of an expected Newton step at q) / t_0     the prior's
             download     q                                                      Algorithm 1, 3
    client   cavity       q_-k = q / t_k                                         Algorithm 4, 2
             new_sites    t̂_k = q̂_k / q_-k, from q̂_k ≈ p_k q_-k                  Algorithm 4, 3
             local_step   Δ_k = t̂_k / t_k = q̂_k / q                              Algorithm 4, 4
    server   combine      q ← q Π_k (Δ_k)^s_k,   t_0 ← t_0 (Δ_0)^s_0             Algorithm 3, 2
             feedback     s_k, to each client
    client   settle       t_k ← t_k (Δ_k)^s_k                                    Algorithm 4, 5

The prior's site t_0 has η_0 = E_q[∇ log p_0] + Λ_0 m and Λ_0 = E_q[-∇² log p_0]. For a Gaussian prior on the
unconstrained scale, t_0 stays the same; rounds then omit Δ_0, unless they need the bound. Prior and clients move by the
same rule, so q = t_0 Π_k t_k holds in every round. A step rule (`steps`) determines the fractions s_k, a tilted
inference (`tilted`) q̂_k, and the setting `start` (`settings`) the first q.

If a change is one expected Newton step at q, a message also contains E_q[log p_k]. The sum of these, E_q[log p_0] and
the entropy of q is the evidence lower bound; the server rejects a step that lowers it (`ascent`).

Letters: q, t_0, Δ_0 and s_k are `Server`'s `q`, `prior`, `prior_change` and `fractions`; t_k is `local`; δ `damping`.
Guo et al. write q_global, q_k and q̂_\k for q, t_k and q̂_k, and have s_k = δ; here a step may be shortened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import SiteKeeping, no_distribution_left
from pyro_fed.algorithm.contract import LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State, select
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import resolve
from pyro_fed.density.derivatives import few_rows_findings
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.gaussian_guides import guided_covariance
from pyro_fed.infer.averaging.optim import Optimiser
from pyro_fed.infer.ep import ascent, findings, step_control
from pyro_fed.infer.ep.contributions import EPContributions, without_value
from pyro_fed.infer.ep.step_control import NewtonSteps, StepControl
from pyro_fed.infer.ep.steps import CHANGE, Backtracked, Server, StepRule
from pyro_fed.infer.ep.tilted import Newton, Received, Tilted, TiltedInference
from pyro_fed.infer.ep.tilted.base import numerics_of
from pyro_fed.infer.sites.gaussian_sites import (
    MIN_POINTS,
    SpreadGaussian,
    add_batch_axis,
    as_state,
    at_mean,
    drop_batch_axis,
    fit_prior,
    flat_site,
    gaussian,
    is_finite,
    kept_where,
    prepend_gaussian,
    site_of,
    spread_points,
)
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import STRUCTURES, Gaussian

#: Multiples of q's SDs at which the prior's sites are compared; they are equal for a Gaussian prior.
NEAR_AND_FAR = (1.0, 100.0)
#: Largest relative change of the prior's site that counts as rounding: half the digits of single precision.
ROUNDING_SHARE = torch.finfo(torch.float32).eps ** 0.5


@dataclass(frozen=True, kw_only=True)
class EP(SpreadGaussian, SiteKeeping):
    """The rounds of expectation propagation; a public algorithm sets the clients' inference and the step rule.

    Args:
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance.
        client: how the clients approximate their tilted distributions: a `pf.infer.tilted` inference with its settings,
            or its name for their defaults: "newton", "laplace", "fisher" (L), "mcmc" (M), "identity" (I), "ngvi" (V),
            "svi", "ivon". On models of more than 1000 parameters "ivon" is taken if none is set.
    """

    #: The server returns what it clips from a message, and `settle` corrects the site by it.
    corrected: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = step_control.UNKNOWN

    guide: Any = None
    client: TiltedInference | str = Newton()

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve(self, "client", TiltedInference)
        self._take_covariance_from_guide()

    def _take_covariance_from_guide(self) -> None:
        """Set `covariance` to that of an automatic guide; refuse other guides."""
        if self.guide is not None:
            object.__setattr__(self, "covariance", guided_covariance(self, self.guide, self.covariance))

    # -- the equations --------------------------------------------------------------------------------------
    def cavity(self, received: State, site: Gaussian) -> Gaussian:
        """q_-k = q / t_k, step 2 of Algorithm 4, (C,)."""
        return gaussian(received).quotient(site)

    def old_site(self, received: State, local: State) -> Gaussian:
        """t_k, (C,), the site that the change is relative to."""
        return gaussian(local)

    def new_sites(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Approximate t̂_k of q̂_k ≈ p_k q_-k, step 3 of Algorithm 4, (C,)."""
        return self.solver.infer(problem, numerics_of(self, problem), received, data, noise)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute Δ_k, steps 2 to 4 of Algorithm 4; step 5 is in `settle`."""
        site = self.old_site(shared, local)
        cavity = self.cavity(shared, site)
        received = Received(self.begin_at(shared, local, cavity), cavity)
        tilted = self.new_sites(problem, received, data, noise)
        empty = data.num_rows == 0  # the site of a client without rows is flat
        usable = (tilted.usable & is_finite(tilted.site)) | empty
        new_site = kept_where(usable & ~empty, tilted.site)
        change = kept_where(usable, new_site.quotient(site))
        message = {**as_state(change), "usable": usable}
        if self.isotropic:
            message["precision"] = change.precision[:, :1]
        if self.bound_is_known:
            message["value"] = torch.where(usable, tilted.info["expected_log_lik"], 0.0).nan_to_num()
        info = {**tilted.info, "cavity_proper": cavity.is_proper().double(), "usable": usable.double()}
        return message, {**local, **as_state(change, CHANGE)}, info

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Update q ← q Π_k (Δ_k)^s_k and t_0 ← t_0 (Δ_0)^s_0, Algorithm 3, step 2; `weights` gives only C."""
        server = entries_as(Server, shared)
        changes = prepend_gaussian(server.prior_change, self.changes_of(messages))
        step = self.step_rule(len(weights)).step(server, changes, server.lower_bound(messages))
        return as_entries(step.server_after(server, messages["usable"]))

    def settle(self, feedback: State, local: State) -> State:
        """Update t_k ← t_k (Δ_k)^s_k, step 5 of Algorithm 4, and multiply by the client's share of the acceleration."""
        change = gaussian(local, CHANGE)
        if "correction_eta" in feedback:  # the server has shortened the message
            change = change.product(gaussian(feedback, "correction_"))
        if "weight" in feedback:
            change = change.power(feedback["weight"])
        damped_change, memory = self.client_steps(feedback, local, change)  # (Δ_k)^s_k
        site = gaussian(local).power(1 - feedback["reset"])  # t_k; a flat site (t_k = 1) if the server has reset
        return {**as_state(site.product(damped_change).product(gaussian(feedback, "share_"))), **memory}

    def client_steps(self, feedback: State, local: State, change: Gaussian) -> tuple[Gaussian, State]:
        """The damped change (Δ_k)^s_k, (C,), and the new state of the client's optimiser."""
        return change.power(feedback["fraction"]), {}

    # -- the rest of a round --------------------------------------------------------------------------------
    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute Δ_0, the change of the prior's site, by the clients' step, unless `Server.skips_prior`."""
        server = entries_as(Server, shared)
        if bool(server.skips_prior):
            return shared
        change, value = prior_change_at(self, self.solver, problem, server)
        return as_entries(replace(server, prior_change=change, prior_value=value))

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """For each client s_k, its share of the acceleration, and whether sites are discarded; and figures."""
        server = entries_as(Server, after)
        return server.feedback(len(clients)), {"fraction": server.fractions}

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q."""
        return super().download(as_state(gaussian(shared)), clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The randomness of the clients' inference."""
        return self.solver.draw_noise(problem, num_rows, generator)

    def changes_of(self, messages: State) -> Gaussian:
        """Δ_k, (C,), from the clients' messages."""
        precision, eta = messages["precision"], messages["eta"]
        return gaussian({"precision": precision.expand_as(eta) if self.isotropic else precision, "eta": eta})

    @property
    def isotropic(self) -> bool:
        """Whether precisions are multiples of the identity, of which messages contain one number (Section 2.2.2)."""
        return False

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Reasons to reject messages, with the clients (C,) of each: changes that are too large beside the others'."""
        return self.solver.objections(gaussian(received), self.changes_of(messages), messages.get("value"))

    def begin_at(self, received: State, local: State, cavity: Gaussian) -> Gaussian:
        """The Gaussians (C,) at which the clients' inference begins: q, except in FedLap."""
        return gaussian(received)

    # -- what public algorithms override --------------------------------------------------------------------
    @property
    def solver(self) -> TiltedInference:
        """The tilted inference of the clients: the setting `client` as an instance."""
        return cast(TiltedInference, self.client)

    @property
    def by_newton(self) -> bool:
        """Whether clients take expected Newton steps; default covariances and cures depend on it."""
        return self.solver.newton_steps > 0

    def step_rule(self, clients: int) -> StepRule:
        """The rule for the server's step from the changes of this many clients."""
        damping, steps = self.damping_for(clients), self.solver.newton_steps
        if steps == 0:
            return Backtracked(damping, self.control.reach)
        return NewtonSteps(self.control, damping, accelerates=steps == 1, takes_back=self.bound_is_known)

    @property
    def control(self) -> StepControl:
        """The settings of acceleration and of limits on expected Newton steps."""
        return StepControl()

    def damping_for(self, clients: int) -> float:
        """δ: 1 for Newton steps, otherwise 1 / C, so that q is the geometric mean of the clients' q̂_k."""
        return 1.0 if self.solver.newton_steps else 1.0 / clients

    @property
    def bound_is_known(self) -> bool:
        """Whether clients send E_q[log p_k]: they take one expected Newton step, and q is the product of sites."""
        return self.solver.newton_steps == 1 and self.is_product and not self.additive

    @property
    def server_optimiser(self) -> Optimiser | None:
        """The optimiser of q; None for steps by fractions of the changes."""
        return None

    @property
    def is_product(self) -> bool:
        """Whether q = t_0 Π_k t_k holds; with optimisers it does not."""
        return True

    # -- start of a run -------------------------------------------------------------------------------------
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the prior, with flat sites."""
        q = fit_prior(self, problem, generator)
        return self.first_states(problem, q, q, flat_site(problem, self.structure, num_clients))

    def first_states(self, problem: Problem, q: Gaussian, prior: Gaussian, sites: Gaussian) -> tuple[State, State]:
        """The server's and the clients' states for q = t_0 Π_k t_k, with `prior` t_0 and `sites` t_k (K,)."""
        # The bound needs E_q[log p_0] in every round, even if t_0 does not change.
        skips_prior = not self.bound_is_known and prior_never_changes(self, problem, q, prior)
        memory = self.step_rule(len(sites.eta)).memory(q)
        return as_entries(Server.begin(q, prior, skips_prior, len(sites.eta), memory)), self.client_state(sites)

    def client_state(self, sites: Gaussian) -> State:
        """The states of the clients, (K, ...): their sites."""
        return as_state(sites)

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """Start from an earlier run with other clients: those still present keep their sites, new ones get flat sites.

        `origin` (K,) is the number of each client in the earlier run's `local`, -1 for a new one.
        """
        prior, sites = gaussian(shared, "prior_"), kept_where(origin >= 0, gaussian(select(local, origin.clamp_min(0))))
        if not isinstance(sites, STRUCTURES[self.structure]):
            kept = "full" if sites.dense else "diag"
            raise SettingError(
                f"{type(self).__name__}: the earlier run's sites have covariances of the kind '{kept}', and this "
                f"run's are '{self.structure}': set covariance='{kept}', or run it afresh"
            )
        q = prior.product(sites.product_over(0))
        if not bool(q.is_proper()):
            raise no_distribution_left(self)
        return self.first_states(problem, q, prior, sites)

    # -- end of a run ---------------------------------------------------------------------------------------
    def default_rounds(self, num_clients: int) -> int:
        """At most 50 rounds; for a random inference, which does not converge, its own number or 20."""
        return 50 if self.solver.deterministic else self.solver.default_rounds

    def damping_of_round(self, after: State) -> float:
        """δ of the round, by which `monitor` divides the change; 1 where δ is no share of the distance."""
        converges = self.solver.deterministic and self.is_product
        return self.damping_for(len(after["fractions"])) if converges else 1.0

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The figures of the round; `change` is that of the undamped step, which estimates the remaining distance."""
        figures, solver_figures = super().monitor(before, after), self.solver.figures(gaussian(before), gaussian(after))
        remaining = {"change": figures["change"] / self.damping_of_round(after)}
        return {
            **figures,
            **solver_figures,
            **ascent.reasons_to_end(after),
            **remaining,
            **entries_as(Server, after).figures(),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """True if steps were rejected repeatedly or the bound hardly rises; None leaves the decision to a subclass."""
        return True if figures[-1].get("in_vain") or figures[-1].get("slow") else None

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about rounds that ended early, unused messages, a q that still moved, and the clients' inference."""
        ends = findings.ended_early(record)
        notes = ends or findings.unused_sites(record, self.by_newton)
        notes += few_rows_findings(problem, self.solver.few_rows)
        notes += [] if ends else self.unsettled(record)
        return notes + self.solver.findings(record, problem)

    def unsettled(self, record: Record) -> list[Finding]:
        """Warnings if q still moved in the last round."""
        return findings.still_moving(record, newton=self.by_newton, diagonal=self.structure == "diag")

    # -- faulty clients, privacy ----------------------------------------------------------------------------
    def contributions(self) -> Contributions:
        """Each client's contribution to q, for limits on faulty clients and for privacy."""
        return EPContributions(self)

    def clippable_part(self, messages: State) -> State:
        """η and Λ, without expected log-likelihoods, which would let a single client reject a step."""
        return without_value(messages)

    def controlled_by(self, control: StepControl) -> Self:
        """This algorithm with another control of Newton steps, if it has such a setting (see `Controlled`)."""
        return self


def prior_change_at(
    algorithm: SpreadGaussian, solver: TiltedInference, problem: Problem, server: Server
) -> tuple[Gaussian, Tensor]:
    """Δ_0 at the server's q, and E_q[log p_0], (); with inferences by gradients from a few points if they suffice."""
    q, all_points = add_batch_axis(server.q), algorithm.points(add_batch_axis(server.q))
    few_points_first = solver.by_gradients and len(all_points) > MIN_POINTS
    points = spread_points(q, MIN_POINTS) if few_points_first else all_points
    moments, change = _newton_step(algorithm, problem, q, server.prior, points)
    if few_points_first and not _is_rounding(server.prior, change):  # a Gaussian prior needs no more points
        moments, change = _newton_step(algorithm, problem, q, server.prior, all_points)
    return change, moments.value[0]


def prior_never_changes(algorithm: SpreadGaussian, problem: Problem, q: Gaussian, prior: Gaussian) -> bool:
    """Whether the prior's site is `prior` both near the initial q and far from it."""
    if not bool(q.is_proper()):
        return False
    for wide in NEAR_AND_FAR:
        at = add_batch_axis(at_mean(type(q)(q.precision / wide**2, q.eta), q.mean()))
        change = _newton_step(algorithm, problem, at, prior, spread_points(at, MIN_POINTS))[1]
        if not _is_rounding(prior, change):
            return False
    return True


def _newton_step(
    algorithm: SpreadGaussian, problem: Problem, q: Gaussian, prior: Gaussian, points: Tensor
) -> tuple[Moments, Gaussian]:
    """Means of the log prior over points (S, 1, D) under q, and Δ_0."""
    moments = algorithm.derivatives().of_prior(problem, points)
    return moments, drop_batch_axis(site_of(moments, q.mean())).quotient(prior)


def _is_rounding(prior: Gaussian, change: Gaussian) -> bool:
    """Whether a change Δ_0, computed at few points, is zero up to rounding."""
    diagonal = prior.precision.diagonal() if prior.dense else prior.precision
    root = diagonal.abs().sqrt()
    tolerance = ROUNDING_SHARE * (root.unsqueeze(-1) * root if prior.dense else diagonal.abs())
    eta_is_equal = change.eta.abs() <= ROUNDING_SHARE * (prior.eta.abs() + root)  # False for NaN
    return bool(eta_is_equal.all() and (change.precision.abs() <= tolerance).all())
