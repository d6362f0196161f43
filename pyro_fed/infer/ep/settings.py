"""Groups of settings that algorithms of expectation propagation share; each takes those that have an effect on it.

    Converging     when a run has converged
    Damped         δ
    Optimising     optimisers of q and of the clients' sites in place of fractions
    Controlled     how expected Newton steps are accelerated and held back
    WarmStarted    where a run begins
    Guided         guides that are functions, which another algorithm federates

A run that starts by "few_rows" begins at the q of rounds by a quarter of the rows, run to their end, and these by a
quarter of theirs: a network needs many rounds, each at the cost of its rows. q_n ∝ p_0 Π t_k is that of n rows as a
posterior of its own, since few rows that counted as many would be learned by heart. Rounds by 4 n rows begin at
q_4n ≈ q_n⁴, with an equal share of q_4n / p_0 for every client; the true one lies some 1.7 SDs away in each of D
directions, and has half the SD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State, prefixed
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Settings, chosen_setting, explains_unknown, refuse_unused, resolve
from pyro_fed.conventions.setting_checks import check_between, check_choice, check_positive
from pyro_fed.density.derivatives import fewer_rows, flat_direction
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.guides.gaussian_guides import is_hand_written
from pyro_fed.infer.averaging.optim import OPTIM, SGD, Optimiser
from pyro_fed.infer.ep import ascent
from pyro_fed.infer.ep.expectation_propagation import EP
from pyro_fed.infer.ep.findings import at_rest
from pyro_fed.infer.ep.guided import GuidedFedEP, with_own_families
from pyro_fed.infer.ep.point_sites import Averaging, PointSites
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.ep.steps import Optimised, StepRule, optimised_site_steps
from pyro_fed.infer.laplace.fedlaplace import WARM_TOLERANCE, FedLaplace
from pyro_fed.infer.laplace.laplace_point import MAX_CURVATURE_FALL, mode_level
from pyro_fed.infer.sites.gaussian_sites import (
    absolute,
    add_batch_axis,
    as_state,
    at_mean,
    flat_like,
    flat_site,
    gaussian,
    is_finite,
)
from pyro_fed.ops.gaussian import Gaussian

#: Why an algorithm of one round or pass has no settings for more.
ONE_PASS = "one pass from the prior is all; use FedEP"


@dataclass(frozen=True, kw_only=True)
class Converging(EP):
    """Expectation propagation with a criterion of convergence."""

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "tolerance")

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q is at rest (`findings.at_rest`); None for a random inference, whose q never is."""
        ended = super().converged(figures)
        return at_rest(figures, self.tolerance) if ended is None and self.solver.deterministic else ended


@dataclass(frozen=True, kw_only=True)
class Damped(EP):
    """Expectation propagation with a setting for δ."""

    damping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "damping", allow_none=True)
        if self.damping is not None and self.server_optimiser is None:
            check_between(self, "damping", 0, 1)

    def damping_for(self, clients: int) -> float:
        """The setting `damping`, or the value of the clients' inference."""
        return super().damping_for(clients) if self.damping is None else self.damping


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Optimisers(Settings):
    """Optimisers of changes in place of fractions, Section 2.2.3 of Guo et al.; their learning rate is `damping`.

    Args:
        server: of Σ_k Δ_k: a `pf.infer.optim` optimiser, or its name for the defaults: "sgd", "adagrad", "adam". None
            adds the changes, each to the fraction that leaves q a distribution.
        client: the same, of each client's Δ_k; None takes the fractions that the server took.
        changes: the input of the server's optimiser: the "sum" of the clients' changes, as in Algorithm 3, or their
            "mean", as the authors' code; the clients' optimisers are then given that share of their own.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Guo et al. (2023), Algorithm 3 and Table 7. Reddi et al. (2020).

    Example:
        >>> idata = pf.run(pf.FedEP(optimisers=pf.infer.Optimisers(server="adam"), damping=0.1), fed)
    """

    server: Optimiser | str | None = None
    client: Optimiser | str | None = None
    changes: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        resolve(self, "server", Optimiser, allow_none=True)
        resolve(self, "client", Optimiser, allow_none=True)
        check_choice(self, "changes", ("sum", "mean"))
        if self.server is None:
            refuse_unused(self, "it is what the server's optimiser is given; set server", "changes")
            if self.client is None:
                raise SettingError("Optimisers: give an optimiser of the server or of the clients")


@dataclass(frozen=True, kw_only=True)
class Optimising(Damped):
    """Expectation propagation with optimisers of q and of the clients' sites."""

    without: ClassVar[Mapping[str, str]] = {
        "server_optimiser": "it is that of optimisers=pf.infer.Optimisers(server=...)",
        "client_optimiser": "it is that of optimisers=pf.infer.Optimisers(client=...)",
    }

    optimisers: Optimisers | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.optimisers is not None and not isinstance(self.optimisers, Optimisers):
            raise SettingError(f"{name}: optimisers must be a pf.infer.Optimisers, received {self.optimisers!r}")
        super().__post_init__()
        if self.damping is None and not self.is_product:
            raise SettingError(f"{name}: an optimiser needs its learning rate, damping")

    @property
    def server_optimiser(self) -> Optimiser | None:
        """The optimiser of q; None takes fractions."""
        return None if self.optimisers is None else cast("Optimiser | None", self.optimisers.server)

    @property
    def client_optimiser(self) -> Optimiser | None:
        """The optimiser of each client's site; None takes fractions."""
        return None if self.optimisers is None else cast("Optimiser | None", self.optimisers.client)

    @property
    def prior_optimiser(self) -> Optimiser | None:
        """The optimiser of the prior's site: the clients', or q's where clients have no sites."""
        return self.server_optimiser if self.additive else self.client_optimiser

    @property
    def by_mean(self) -> bool:
        """Whether the server's optimiser is given the mean of the changes."""
        return self.optimisers is not None and self.optimisers.changes == "mean"

    @property
    def is_product(self) -> bool:
        """Whether q = t_0 Π_k t_k holds, which it does not if an optimiser decides on steps of q or the sites."""
        return self.optimisers is None

    @property
    def rate(self) -> float:
        """The optimisers' learning rate."""
        return cast(float, self.damping)

    def step_rule(self, clients: int) -> StepRule:
        """The optimiser's rule, if there is an optimiser."""
        if self.server_optimiser is None:
            return super().step_rule(clients)
        return Optimised(self.server_optimiser, self.prior_optimiser, self.rate, mean=self.by_mean)

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What clients receive as of the other settings, and for changes="mean" each change's share."""
        told, figures = super().feedback(after, clients)
        if self.by_mean:
            told["weight"] = torch.full_like(after["fractions"], 1.0 / len(clients))
        return told, figures

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """The warnings of the other settings, and one if optimisers gave up q = t_0 Π_k t_k."""
        notes = super().warnings(record, problem)
        return notes if self._kept_product(record.figures) else [*notes, sentences.sites_are_not_the_quotient()]

    def _kept_product(self, figures: list[dict[str, float]]) -> bool:
        """Whether q = t_0 Π_k t_k held: steps of q were the sum of the sites', by one linear rule, none shortened."""
        if self.is_product:
            return True
        plain = SGD(momentum=0.0)
        rule = self.server_optimiser or plain
        if not isinstance(rule, SGD) or rule != (self.prior_optimiser or plain):
            return False
        rounds = [one for one in figures if one]
        optimised = self.server_optimiser is not None
        whole = all(not one["cut"] and (optimised or one["fraction"] >= self.rate) for one in rounds)
        # Momentum adds up to the same only if no site missed a round; sites that no client keeps are q's own share.
        return whole and (rule == plain or self.additive or all(one["share"] == 1 for one in rounds))

    def client_state(self, sites: Gaussian) -> State:
        """The clients' sites, and the optimiser's state."""
        state = super().client_state(sites)
        if self.client_optimiser is None:
            return state
        first = {name: value[0] for name, value in as_state(sites).items()}
        zero = self.client_optimiser.init(first, self.rate)
        each = {name: value.expand(len(sites.eta), *value.shape).clone() for name, value in zero.items()}
        return {**state, **prefixed(OPTIM, each)}

    def client_steps(self, told: State, local: State, change: Gaussian) -> tuple[Gaussian, State]:
        """The optimiser's steps, if there is an optimiser."""
        if self.client_optimiser is None:
            return super().client_steps(told, local, change)
        return optimised_site_steps(self.client_optimiser, self.rate, local, change)


@dataclass(frozen=True, kw_only=True)
class Controlled(EP):
    """Expectation propagation with settings of the acceleration and limits of expected Newton steps."""

    step_control: StepControl = StepControl()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.step_control, StepControl):
            name = type(self).__name__
            raise SettingError(f"{name}: step_control must be a pf.infer.StepControl, received {self.step_control!r}")
        if not self.solver.newton_steps:
            refuse_unused(self, "it accelerates and holds back the steps of client='newton' alone", "step_control")
        if self.server_optimiser is not None:
            refuse_unused(self, "the server's optimiser decides on its steps", "step_control")

    @property
    def control(self) -> StepControl:
        """The setting `step_control`."""
        return self.step_control

    def controlled_by(self, control: StepControl) -> Self:
        """This algorithm with another control of its Newton steps."""
        return replace(self, step_control=control) if self.solver.newton_steps else self


@dataclass(frozen=True, kw_only=True)
class WarmStarted(EP):
    """Expectation propagation with settings of a run's start."""

    start: Literal["auto", "laplace", "mode", "prior", "fedavg", "few_rows"] | Averaging = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.start, Averaging):
            check_choice(self, "start", ("auto", "laplace", "mode", "prior", "fedavg", "few_rows"))

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The phase of the setting `start`: Newton's method with all clients, averaging, or fewer rows."""
        start = chosen_setting(self, "start")
        match start:
            case "prior":
                return None
            case "fedavg" | Averaging():
                return self.point_sites()
            case "few_rows":
                return replace(self, client=self.solver.by_few_rows(self.rows_before(problem)), start="auto")
        return FedLaplace(
            covariance=self.structure,
            curvature=self.curvature,
            temperature=self.temperature,
            tolerance=FedLaplace.tolerance if start == "mode" else WARM_TOLERANCE,
            few_rows=self.solver.few_rows,
        )

    def rows_before(self, problem: Problem) -> int:
        """The number of rows in the rounds of start="few_rows"."""
        return fewer_rows(self.rows_of_rounds(problem.num_rows))

    def rows_of_rounds(self, num_rows: int) -> int:
        """The number of rows in a round, of all clients."""
        return self.solver.few_rows or num_rows

    def point_sites(self) -> Algorithm:
        """The phase that gives the clients their sites at an averaged point; refuses a full covariance."""
        if self.structure == "full":
            raise SettingError(
                f"{type(self).__name__}: sites at an averaged point are diagonal, and those of this model are full: "
                "take covariance='diag', or leave start out"
            )
        if not isinstance(self.start, Averaging):
            return PointSites(temperature=self.temperature)
        averaging, scale = self.start.algorithm(), self.start.scale
        return PointSites(temperature=self.temperature, averaging=averaging, scale=scale)

    @property
    def isotropic(self) -> bool:
        """Whether sites are multiples of the identity: with `Identity` of a given scale, if the first ones are."""
        starts_so = self.start == "prior" or isinstance(self.start, Averaging)
        return self.solver.isotropic and starts_so and self.covariance == "diag" and not self.additive

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the warm start's sites, or from the prior with sites equal to one."""
        if start is None:
            return super().init(problem, num_clients, generator, start)
        self._refuse_no_mode(problem, start)
        q, sites, prior = warm_sites(start, lambda q: self.narrowed(problem, q))
        if self.start == "few_rows":
            times = self.rows_of_rounds(problem.num_rows) / self.rows_before(problem)
            q = q.power(times)
            site = q.quotient(prior).power(1.0 / num_clients)
            sites = flat_site(problem, self.structure, num_clients).product(add_batch_axis(site))
        shared, local = self.first_states(problem, q, prior, sites)
        return shared | self._network_thresholds(problem, shared, start), local

    def for_private_rounds(self) -> Self:
        """This algorithm for private rounds; start="few_rows" becomes "laplace", because its rounds would add noise."""
        lone = replace(self, start="laplace") if self.start == "few_rows" else self
        return super(WarmStarted, lone).for_private_rounds()

    def _refuse_no_mode(self, problem: Problem, start: Start) -> None:
        """Refuse a federated Laplace approximation without a mode."""
        if float(start.shared.get("fall", 0.0)) > MAX_CURVATURE_FALL:
            raise ModelError(f"{type(self).__name__}: {sentences.MODE_AT_INFINITY}")
        if free := flat_direction(problem, gaussian(start.shared).precision):
            raise ModelError(
                f"{type(self).__name__}: the posterior is improper: along {free} the density is flat, since the data "
                "say nothing of it, nor do the priors. Give proper priors, or leave out what others express"
            )

    def _network_thresholds(self, problem: Problem, shared: State, start: Start) -> State:
        """The state entries by which `ascent` judges starts and gains of a network; empty for other models."""
        if "level" not in shared or not problem.traits.layers:
            return {}
        dim = problem.dim if self.solver.few_rows is not None else 0
        known = ascent.of_network(mode_level(start.shared), self.rows_of_rounds(problem.num_rows), dim)
        if self.start == "few_rows":
            known["radius"] = ascent.MAX_FIRST_RADIUS  # q is that near
        return {name: torch.full_like(shared[name], value) for name, value in known.items()}


@dataclass(frozen=True, kw_only=True)
class Guided(EP):
    """Expectation propagation with guides that are functions: `guided` federates their exponential families."""

    guided: ClassVar[type[GuidedFedEP]] = GuidedFedEP

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_hand_written(self.guide):
            self.delegate()

    def _take_covariance_from_guide(self) -> None:
        if not is_hand_written(self.guide):
            super()._take_covariance_from_guide()

    def delegate(self) -> Algorithm:
        """This algorithm, or with a hand-written guide the one that federates the guide's families."""
        if not is_hand_written(self.guide):
            return self
        return with_own_families(self, self.guided, EP.num_points)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start as of the other settings; refuse a hand-written guide, which another algorithm federates."""
        if is_hand_written(self.guide):
            raise SettingError(f"{type(self).__name__}: a hand-written guide is federated by `delegate()`, as run does")
        return super().init(problem, num_clients, generator, start)


def warm_sites(
    start: Start, narrowed: Callable[[Gaussian], Gaussian] = lambda q: q
) -> tuple[Gaussian, Gaussian, Gaussian]:
    """q, sites (K,) and the prior's site of a federated Laplace approximation, from its last state.

    Where its curvature is not positive definite, its point is no mode, or its prior has no site at an edge (t_0 is flat
    then), q takes |H| around the point, `narrowed`, and the sites share the difference equally.
    """
    q, sites, prior = gaussian(start.shared), gaussian(start.local), gaussian(start.shared, "prior_")
    proper, indefinite = absolute(q)
    inside = bool(is_finite(prior))
    if inside and not bool(indefinite) and not bool(start.shared.get("back", False)):
        return q, sites, prior
    prior = prior if inside else flat_like(prior)
    proper = narrowed(at_mean(proper, start.shared["point"]))
    apart = proper.quotient(prior.product(sites.product_over(0)))
    return proper, sites.product(apart.power(1.0 / len(sites.eta))), prior
