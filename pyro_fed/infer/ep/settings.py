"""Groups of settings shared by the algorithms of expectation propagation.

    Converging     criterion of convergence
    Damped         δ
    Optimising     optimisers of q and of the clients' sites in place of fractions
    Controlled     acceleration and limits of expected Newton steps
    WarmStarted    start of a run
    Guided         hand-written guides, which another algorithm federates

start="few_rows" is for networks, which need many rounds whose cost grows with the number of rows. The run starts at the
q of a run on a quarter of the rows, which itself starts on a quarter of those. The first run weights each of its n rows
once, so that its q_n ∝ p_0 Π t_k is the posterior of n rows. Weighting them up to all rows would overfit a network. The
run on 4 n rows starts at q_4n ≈ q_n⁴, with an equal share of q_4n / p_0 for every client. The true q_4n is about
1.7 SDs away in each of D directions and has half the SD.
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
from pyro_fed.infer.ep.tilted import Newton
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

#: Why algorithms with a single round or pass have no settings for more.
ONE_PASS = "there is only one pass, from the prior; use FedEP"


@dataclass(frozen=True, kw_only=True)
class Converging(EP):
    """Expectation propagation with a criterion of convergence.

    Args:
        tolerance: the run has converged when no mean has more than this many SDs left to go, and no SD more than this
            share. What is left is taken to be the round's move divided by δ.
    """

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "tolerance")

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q has converged (`findings.at_rest`); None for random inferences, which have no criterion."""
        ended = super().converged(figures)
        return at_rest(figures, self.tolerance) if ended is None and self.solver.deterministic else ended


@dataclass(frozen=True, kw_only=True)
class Damped(EP):
    """Expectation propagation with a setting for δ.

    Args:
        damping: δ, in (0, 1]; with an optimiser, its learning rate. None takes 1 for "newton", and else one over the
            clients of the round: q is then the geometric mean of their tilted distributions, so that the clients' noise
            averages out.
    """

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
    """Optimisers in place of fractions of the changes, Section 2.2.3 of Guo et al.; their learning rate is `damping`.

    Args:
        server: optimiser of Σ_k Δ_k: one of `pf.infer.optim`, or its name for the defaults: "sgd", "adagrad", "adam".
            None takes the largest fraction of the changes that leaves q a distribution.
        client: optimiser of each client's Δ_k, as `server`; None takes the server's fractions.
        changes: input of the server's optimiser: the "sum" of the clients' changes, as in Algorithm 3, or their
            "mean", as in the authors' code. With "mean", the clients' optimisers receive Δ_k divided by C as well.

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
            refuse_unused(self, "it is the input of the server's optimiser; set server", "changes")
            if self.client is None:
                raise SettingError("Optimisers: server or client must be an optimiser, received None for both")


@dataclass(frozen=True, kw_only=True)
class Optimising(Damped):
    """Expectation propagation with optimisers of q and of the clients' sites.

    Args:
        optimisers: of the changes, in place of fractions: a `pf.infer.Optimisers`, whose learning rate is `damping`.
    """

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
        """Whether the input of the server's optimiser is the mean of the changes."""
        return self.optimisers is not None and self.optimisers.changes == "mean"

    @property
    def is_product(self) -> bool:
        """Whether q = t_0 Π_k t_k holds, which is not so if an optimiser moves q or the sites."""
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
        """The feedback of the other settings, and with changes="mean" the weight of each change."""
        feedback, figures = super().feedback(after, clients)
        if self.by_mean:
            feedback["weight"] = torch.full_like(after["fractions"], 1.0 / len(clients))
        return feedback, figures

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """The warnings of the other settings, and one if q = t_0 Π_k t_k did not hold with optimisers."""
        notes = super().warnings(record, problem)
        return notes if self._product_held(record.figures) else [*notes, sentences.sites_are_not_the_quotient()]

    def _product_held(self, figures: list[dict[str, float]]) -> bool:
        """Whether q = t_0 Π_k t_k held: q and the sites moved by the same linear rule in every round."""
        if self.is_product:
            return True
        plain = SGD(momentum=0.0)
        rule = self.server_optimiser or plain
        if not isinstance(rule, SGD) or rule != (self.prior_optimiser or plain):
            return False
        rounds = [one for one in figures if one]
        optimised = self.server_optimiser is not None
        whole = all(not one["cut"] and (optimised or one["fraction"] >= self.rate) for one in rounds)
        # With momentum, the sites' steps sum to that of q only if no client missed a round. Sites that no client keeps
        # are shares of q.
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

    def client_steps(self, feedback: State, local: State, change: Gaussian) -> tuple[Gaussian, State]:
        """The optimiser's steps, if there is an optimiser."""
        if self.client_optimiser is None:
            return super().client_steps(feedback, local, change)
        return optimised_site_steps(self.client_optimiser, self.rate, local, change)


@dataclass(frozen=True, kw_only=True)
class Controlled(EP):
    """Expectation propagation with settings of the acceleration and limits of expected Newton steps.

    Args:
        step_control: how Newton steps are accelerated and held back.
    """

    step_control: StepControl = StepControl()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.step_control, StepControl):
            name = type(self).__name__
            raise SettingError(f"{name}: step_control must be a pf.infer.StepControl, received {self.step_control!r}")
        if not self.solver.newton_steps:
            refuse_unused(self, "it controls only the steps of client='newton'", "step_control")
        if self.server_optimiser is not None:
            refuse_unused(self, "the server's optimiser determines the steps", "step_control")

    @property
    def control(self) -> StepControl:
        """The setting `step_control`."""
        return self.step_control

    def controlled_by(self, control: StepControl) -> Self:
        """This algorithm with another control of its Newton steps."""
        return replace(self, step_control=control) if self.solver.newton_steps else self


@dataclass(frozen=True, kw_only=True)
class WarmStarted(EP):
    """Expectation propagation with settings of a run's start.

    Args:
        start: the first q. "auto" takes the first of these that applies:

            - "fedavg": diagonal sites at the point that 40 rounds by Adam find (100 of a network of at most 1000
              parameters that does not classify); on large models, on which "ivon" is taken.
            - "mode": as "laplace", to the end of Newton's method; under improper priors, also in place of "laplace".
            - "prior": the Gaussian nearest to the prior; for more than 100 parameters (1,000 of linear predictors), or
              if scores jump, as those of a quantile regression or a lasso: their curvatures say nothing.
            - "few_rows": the q of rounds by a quarter of the rows; for networks of many rows.
            - "laplace": the federated Laplace approximation, with all clients; otherwise.
            - a `pf.infer.Averaging`: as "fedavg", in the published form; never by "auto".
    """

    start: Literal["auto", "laplace", "mode", "prior", "fedavg", "few_rows"] | Averaging = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.start, Averaging):
            check_choice(self, "start", ("auto", "laplace", "mode", "prior", "fedavg", "few_rows"))
        if self.start == "few_rows" and not isinstance(self.solver, Newton):
            raise SettingError(
                f"{type(self).__name__}: start='few_rows' needs client='newton', since other inferences always use all "
                f"rows; received client={self.client!r}"
            )

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The phase of the setting `start`: Newton's method with all clients, averaging, or fewer rows."""
        start = chosen_setting(self, "start")
        match start:
            case "prior":
                return None
            case "fedavg" | Averaging():
                return self.point_sites()
            case "few_rows":
                newton = cast(Newton, self.solver)
                return replace(self, client=replace(newton, few_rows=self.rows_of_earlier_run(problem)), start="auto")
        return FedLaplace(
            covariance=self.structure,
            curvature=self.curvature,
            temperature=self.temperature,
            tolerance=FedLaplace.tolerance if start == "mode" else WARM_TOLERANCE,
            few_rows=self.solver.few_rows,
        )

    def rows_of_earlier_run(self, problem: Problem) -> int:
        """The number of rows in the run that start="few_rows" begins with."""
        return fewer_rows(self.rows_of_rounds(problem.num_rows))

    def rows_of_rounds(self, num_rows: int) -> int:
        """The number of rows of all clients in a round."""
        return self.solver.few_rows or num_rows

    def point_sites(self) -> Algorithm:
        """The phase that computes the clients' sites at an averaged point; refuses a full covariance."""
        if self.structure == "full":
            raise SettingError(
                f"{type(self).__name__}: sites at an averaged point are diagonal, but the covariance is full: "
                "use covariance='diag', or another start"
            )
        if not isinstance(self.start, Averaging):
            return PointSites(temperature=self.temperature)
        averaging, scale = self.start.algorithm(), self.start.scale
        return PointSites(temperature=self.temperature, averaging=averaging, scale=scale)

    @property
    def isotropic(self) -> bool:
        """Whether sites are multiples of the identity: those of the start, and `client` is `Identity` with a scale."""
        starts_so = self.start == "prior" or isinstance(self.start, Averaging)
        return self.solver.isotropic and starts_so and self.covariance == "diag" and not self.additive

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the warm start's sites, or from the prior with flat sites."""
        if start is None:
            return super().init(problem, num_clients, generator, start)
        self._refuse_no_mode(problem, start)
        q, sites, prior = sites_of_laplace(start, lambda q: self.narrowed(problem, q))
        if self.start == "few_rows":
            times = self.rows_of_rounds(problem.num_rows) / self.rows_of_earlier_run(problem)
            q = q.power(times)
            site = q.quotient(prior).power(1.0 / num_clients)
            sites = flat_site(problem, self.structure, num_clients).product(add_batch_axis(site))
        shared, local = self.first_states(problem, q, prior, sites)
        return shared | self._network_limits(problem, shared, start), local

    def _refuse_no_mode(self, problem: Problem, start: Start) -> None:
        """Refuse a federated Laplace approximation without a mode."""
        if float(start.shared.get("fall", 0.0)) > MAX_CURVATURE_FALL:
            raise ModelError(f"{type(self).__name__}: {sentences.MODE_AT_INFINITY}")
        if free := flat_direction(problem, gaussian(start.shared).precision):
            raise ModelError(
                f"{type(self).__name__}: the posterior is improper: along {free} the density is flat, since the data "
                "say nothing of it, nor do the priors. Give proper priors, or leave out what others express"
            )

    def _network_limits(self, problem: Problem, shared: State, start: Start) -> State:
        """The state entries with `ascent`'s limits on starts and gains of a network; empty for other models."""
        if "mode_log_density" not in shared or not problem.traits.layers:
            return {}
        dim = problem.dim if self.solver.few_rows is not None else 0
        known = ascent.network_limits(mode_level(start.shared), self.rows_of_rounds(problem.num_rows), dim)
        if self.start == "few_rows":
            known["radius"] = ascent.MAX_FIRST_RADIUS  # q is close already
        return {name: torch.full_like(shared[name], value) for name, value in known.items()}


@dataclass(frozen=True, kw_only=True)
class Guided(EP):
    """Expectation propagation with guides; `guided` federates the exponential families of hand-written guides.

    Args:
        num_points: Sobol points for expectations under q; even. A hand-written guide takes eight draws a point.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance; or a function whose
            global sites are exponential families, which is federated in their natural parameters.
    """

    guided: ClassVar[type[GuidedFedEP]] = GuidedFedEP

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_hand_written(self.guide):
            self.delegate()

    def _take_covariance_from_guide(self) -> None:
        if not is_hand_written(self.guide):
            super()._take_covariance_from_guide()

    def delegate(self) -> Algorithm:
        """This algorithm, or for a hand-written guide the algorithm that federates the guide's families."""
        if not is_hand_written(self.guide):
            return self
        return with_own_families(self, self.guided, EP.num_points)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start as the other settings say; refuse a hand-written guide, which another algorithm federates."""
        if is_hand_written(self.guide):
            raise SettingError(
                f"{type(self).__name__}: a hand-written guide needs the algorithm that `delegate()` returns"
            )
        return super().init(problem, num_clients, generator, start)


def sites_of_laplace(
    start: Start, narrowed: Callable[[Gaussian], Gaussian] = lambda q: q
) -> tuple[Gaussian, Gaussian, Gaussian]:
    """q, sites (K,) and the prior's site of a federated Laplace approximation, from its last state.

    If the curvature is not positive definite, the point is not a mode, or the prior has no site there and t_0 is flat,
    q has the precision |H| around the point, `narrowed`, and each site gets an equal share of the difference.
    """
    q, sites, prior = gaussian(start.shared), gaussian(start.local), gaussian(start.shared, "prior_")
    proper, indefinite = absolute(q)
    inside = bool(is_finite(prior))
    if inside and not bool(indefinite) and not bool(start.shared.get("back", False)):
        return q, sites, prior
    prior = prior if inside else flat_like(prior)
    proper = narrowed(at_mean(proper, start.shared["point"]))
    difference = proper.quotient(prior.product(sites.product_over(0)))
    return proper, sites.product(difference.power(1.0 / len(sites.eta))), prior
