"""Expectation propagation over clients.

Source: Guo et al., *Federated learning as variational inference*, Algorithms 1, 3 and 4; Vehtari et al. (2020).

    q_-k ∝ q / t_k                         cavity
    q̂_k ≈ p_k q_-k                         tilted inference, the setting `client` (see `tilted`)
    Δ_k ∝ q̂_k / q                          what the client sends
    t_k ← t_k (Δ_k)^δ,   q ← q Π_k (Δ_k)^δ

Letters: q `shared`, t_k `local`, δ `damping` and the fractions of `site_updates`; sites as in `gaussian_sites`.

The default inference is not one of the paper's. `tilted.Newton` takes the site of an expected Newton step at q itself,

    Λ_k ← E_q[-∇² log p_k],   η_k ← E_q[∇ log p_k] + Λ_k m,

at the same Sobol points for all clients. Its fixed point is the Gaussian of smallest KL(q ‖ posterior), it is
reached like Newton's method does, undamped, and it starts at the federated Laplace approximation. With
`steps` > 1 the step is repeated at q̂_k, the cavity held fixed: partitioned variational inference.

Deviations: a prior that is not Gaussian gets a site of its own at the server. Fractions are backtracked, never a
precision repaired. With all clients at work single Newton steps are accelerated (`ops.anderson`): where the precision
of one parameter follows the mean of another they alternate for ever, and a diagonal curvature oversteps.

The authors' code differs from their text in what Algorithm 3 sums: each Δ_k has a share of one over the clients of the
round, `changes="mean"`, as the published recipes do: the sum with a learning rate of 0.5 and momentum 0.9 overshoots.
It clips Δ_k too, at a norm chosen by hand for each task and inference; this does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import SiteKeeping
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State, prefixed
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown, refuse_unused, resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.infer.averaging import optim
from pyro_fed.infer.averaging.optim import OPTIM, Optimiser
from pyro_fed.infer.ep import ascent, rows_first, tilted
from pyro_fed.infer.ep.contributions import EPContributions
from pyro_fed.infer.ep.guided import GuidedFedEP
from pyro_fed.infer.ep.large import (
    few_points,
    large_objections,
    mean_growth,
    network_warnings,
    unchanged,
)
from pyro_fed.infer.ep.optimised_steps import client_steps, server_step
from pyro_fed.infer.ep.point_sites import Averaging, PointSites
from pyro_fed.infer.ep.site_updates import (
    Limits,
    at_rest,
    changes,
    fractions_of,
    site_warnings,
    unsettled_warnings,
    warm_sites,
    without_value,
)
from pyro_fed.infer.ep.step_control import StepControl, nothing_added
from pyro_fed.infer.ep.tilted import IVON, Identity, Newton, Numerics, Received, TiltedInference
from pyro_fed.infer.guides.automatic import covariance_of, is_hand_written
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.laplace.laplace_point import ESCAPING, flat_direction, mode_level
from pyro_fed.infer.sites.few_rows import MORE, of_some_rows
from pyro_fed.infer.sites.gaussian_sites import (
    FEWEST_POINTS,
    GaussianAlgorithm,
    as_state,
    at_mean,
    batched,
    flat_site,
    gaussian,
    joined,
    kept_where,
    site_of,
    spread_points,
    unbatched,
)
from pyro_fed.infer.sites.moments import Moments
from pyro_fed.infer.sites.prior_gaussian import fit_prior
from pyro_fed.ops.gaussian import Gaussian

#: Widths of Gaussians, in those of q, under which a Gaussian prior has the same site.
NEAR_AND_FAR = (1.0, 100.0)
#: Settings that only a Gaussian q has, and no hand-written guide.
GAUSSIAN_ALONE = (
    "temperature",
    "covariance",
    "full_dim",
    "curvature",
    "client",
    "start",
    "averaging",
    "warm_tolerance",
    "margin",
    "min_curvature",
    "step_control",
    "server_optimiser",
    "client_optimiser",
    "changes",
)
#: A hand-written guide takes its expectations at so many times `num_points` draws: they are no polynomials.
DRAWS_A_POINT = 8


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedEP(GaussianAlgorithm, SiteKeeping):
    """Federated expectation propagation with Gaussian sites, accurate by default.

    Args:
        covariance: of q: "full", "diag", or "auto": full up to `full_dim` parameters.
        full_dim: largest D for which "auto" takes a full covariance, and exact Hessians; 1,000 where it is not set
            and rows have linear predictors.
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians up to `full_dim`
            parameters.
        num_points: Sobol points for expectations under q; even. A hand-written guide takes eight draws a point.
        tolerance: the run has converged when no mean has more than this many SDs left to go, and no SD more than this
            share. What is left is taken to be the round's move divided by δ.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance; or a function whose
            global sites are exponential families, which is federated in their natural parameters.
        num_guide_draws: of a guide that is a function: draws of the fitted guide that are kept, of which `run` returns
            each once; None keeps as many as it is asked for, and 4,000 at least.
        client: how the clients approximate their tilted distributions: a `pf.tilted` inference with its settings, or
            its name for their defaults: "newton", "laplace", "fisher" (L), "mcmc" (M), "identity" (I), "ngvi" (V),
            "svi", "ivon". On models of more than 1000 parameters "ivon" is taken where none is set.
        start: "laplace" (federated, with all clients), "prior", "fedavg" (diagonal sites at the point that averaging
            finds), which "auto" takes on large models, or "few_rows" (the q of rounds by a quarter of the rows), which
            "auto" takes on networks of many rows. Elsewhere "auto" takes a proper prior if there are more than
            `full_dim` parameters, or if scores jump, as those of a quantile regression or a lasso do (curvatures say
            nothing there); and otherwise "laplace".
        averaging: what start="fedavg" averages by: a `pf.Averaging`, as published. None takes 40 rounds by Adam
            (100 of a network of at most 1000 parameters that does not classify), and measures the curvature there.
        warm_tolerance: the federated Laplace approximation stops when its next step is shorter than this, in SDs;
            under an improper prior, at `FedLaplace`'s own tolerance.
        damping: δ, in (0, 1]; with an optimiser, its learning rate. None takes 1 for "newton", and else one over the
            clients of the round: q is then the geometric mean of their tilted distributions, which no noise of theirs
            compounds.
        min_fraction: a change of q is skipped where less than this share of it can be taken.
        margin: smallest eigenvalue that one round may leave of q's precision, relative to what it was.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        step_control: how Newton steps are accelerated and held back.
        server_optimiser: of Σ_k Δ_k: a `pf.optim` optimiser, or its name for the defaults: "sgd", "adagrad", "adam".
            None adds the changes, each to the fraction that leaves q a distribution.
        client_optimiser: the same, of each client's Δ_k.
        changes: what the server's optimiser is given: the "sum" of the clients' changes, as Algorithm 3 says, or their
            "mean", as the authors' code; the clients' optimisers are then given that share of their own.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Guo et al. (2023), Algorithms 1, 3, 4 and 5. Vehtari et al. (2020), JMLR.

    Example:
        >>> idata = pf.run(pf.FedEP(), fed)
        >>> idata = pf.run(pf.FedEP(client=pf.tilted.MCMC(steps=500), covariance="diag"), fed)
        >>> idata = pf.run(pf.FedEP(guide=AutoDiagonalNormal), fed)
    """

    #: What federates a hand-written guide in the place of this class; a subclass has none unless it names its own.
    guided: ClassVar[type[GuidedFedEP] | None] = GuidedFedEP
    corrected: ClassVar[bool] = True
    steered: ClassVar[bool] = True  # `step_control` may be set
    held_back: ClassVar[bool] = True  # a step after which the bound has fallen is taken back
    settles: ClassVar[bool] = True  # how far q moved in its last round says how far it has to go
    may_be_infinite: ClassVar[frozenset[str]] = StepControl.unknown | ascent.UNKNOWN

    guide: Any = None
    num_guide_draws: int | None = GuidedFedEP.num_guide_draws
    client: TiltedInference | tilted.Name = Newton()
    start: Literal["auto", "laplace", "prior", "fedavg", "few_rows"] = "auto"
    averaging: Averaging | None = None
    warm_tolerance: float = 0.5
    damping: float | None = None
    min_fraction: float = 1e-6
    margin: float = 0.05
    min_curvature: float = 1e-6
    step_control: StepControl = StepControl()
    server_optimiser: Optimiser | optim.Name | None = None
    client_optimiser: Optimiser | optim.Name | None = None
    changes: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve(self, "client", TiltedInference)
        resolve(self, "server_optimiser", Optimiser, allow_none=True)
        resolve(self, "client_optimiser", Optimiser, allow_none=True)
        check_choice(self, "start", ("auto", "laplace", "prior", "fedavg", "few_rows"))
        check_choice(self, "changes", ("sum", "mean"))
        check_between(self, "margin", 0, 1, "[)")
        check_positive(self, "damping", allow_none=True)
        check_positive(self, "warm_tolerance", "min_fraction", "min_curvature")
        check_at_least(self, 1, "num_guide_draws", allow_none=True)
        self._check_together()
        self._check_guide()

    def _check_together(self) -> None:
        name, optimised = type(self).__name__, self._optimised
        if not isinstance(self.step_control, StepControl):
            raise SettingError(f"{name}: step_control must be a pf.StepControl, received {self.step_control!r}")
        if self.damping is None and optimised:
            raise SettingError(f"{name}: an optimiser needs its learning rate, damping")
        if self.server_optimiser is None and self.damping is not None:
            check_between(self, "damping", 0, 1)
        if self.start in ("prior", "fedavg"):
            refuse_unused(self, f"start={self.start!r} has no Laplace approximation", "warm_tolerance")
        if self.averaging is not None and not isinstance(self.averaging, Averaging):
            raise SettingError(f"{name}: averaging must be a pf.Averaging, received {self.averaging!r}")
        if self.start != "fedavg":
            refuse_unused(self, "it is that of start='fedavg'", "averaging")
        if self.server_optimiser is None:
            refuse_unused(self, "it is what the server's optimiser is given; set server_optimiser", "changes")
        if not isinstance(self.client, Newton):
            refuse_unused(self, "it accelerates and holds back the steps of client='newton' alone", "step_control")
        if self.server_optimiser is not None:
            refuse_unused(self, "the server's optimiser decides on its steps", "step_control")

    def _check_guide(self) -> None:
        if is_hand_written(self.guide):
            self.delegate()
            return
        refuse_unused(self, "it is a setting of a guide that is a function", "num_guide_draws")
        if self.guide is None:
            return
        covariance = covariance_of(self, self.guide)
        if self.covariance not in ("auto", covariance):
            raise SettingError(
                f"{type(self).__name__}: covariance={self.covariance!r} is not that of the guide, {covariance!r}: "
                "give one of the two"
            )
        object.__setattr__(self, "covariance", covariance)

    def delegate(self) -> Algorithm:
        """This algorithm, or with a hand-written guide the one that federates its own families.

        Raises:
            SettingError: this class has none, or a setting that it does not take.
        """
        if not is_hand_written(self.guide):
            return self
        kind = vars(type(self)).get("guided")
        if kind is None:
            raise SettingError(
                f"{type(self).__name__}: a hand-written guide is federated by FedEP and PVI alone; use "
                "FedEP(guide=...), or an automatic guide such as AutoMultivariateNormal"
            )
        refuse_unused(
            self,
            "a hand-written guide is federated by natural-gradient steps in its own families, from where it begins; "
            "leave it out, or use an automatic guide such as AutoMultivariateNormal",
            *GAUSSIAN_ALONE,
        )
        return cast(Algorithm, kind(**self._guide_settings()))

    def _guide_settings(self) -> dict[str, Any]:
        """What the form for hand-written guides takes of these settings."""
        return {
            "guide": self.guide,
            "num_points": DRAWS_A_POINT * self.num_points,
            "num_guide_draws": self.num_guide_draws,
            "tolerance": self.tolerance,
            "damping": 1.0 if self.damping is None else self.damping,
            "min_fraction": self.min_fraction,
        }

    @property
    def inference(self) -> TiltedInference:
        """How a client approximates its tilted density: the setting `client` as an instance."""
        return cast(TiltedInference, self.client)

    def default_rounds(self, num_clients: int) -> int:
        """At most 50, where it stops when q does not move any more; `IVON`'s own, 20 of what is random otherwise."""
        if self.deterministic:
            return 50
        return self.inference.rounds if isinstance(self.inference, IVON) else 20

    @property
    def deterministic(self) -> bool:
        """Whether the clients' inference has no randomness."""
        return self.inference.deterministic

    def fraction_for(self, clients: int) -> float:
        """δ in a round of some clients."""
        if self.damping is not None:
            return self.damping
        return 1.0 if isinstance(self.client, Newton) else 1.0 / clients

    def part_taken(self, after: State) -> float:
        """The part of a whole step that a round has taken; 1 where steps are an optimiser's, or random."""
        return 1.0 if self._optimised or not self.deterministic else self.fraction_for(len(after["fractions"]))

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What `start` names: Newton's method with all clients, averaging, or this algorithm by fewer rows."""
        match chosen_setting(self, "start"):
            case "prior":
                return None
            case "fedavg":
                return self.point_sites()
            case "few_rows":
                fewer = replace(cast(Newton, self.client), few_rows=self.rows_before(problem))
                return replace(self, client=fewer, start="auto")
        return FedLaplace(
            covariance=self.structure,
            full_dim=self.full_dim,
            curvature=self.curvature,
            temperature=self.temperature,
            tolerance=self.warm_tolerance,
            few_rows=self._few_rows,
        )

    def rows_before(self, problem: Problem) -> int:
        """The rows by which the rounds of start="few_rows" are made."""
        return self.rows_of_rounds(problem.num_rows) // MORE

    def rows_of_rounds(self, num_rows: int) -> int:
        """Rows by which rounds are made, of all clients."""
        return self._few_rows or num_rows

    @property
    def _few_rows(self) -> int | None:
        return self.client.few_rows if isinstance(self.client, Newton) else None

    def point_sites(self) -> Algorithm:
        """What gives the clients their sites at the point of an averaging.

        Raises:
            SettingError: q has a full covariance.
        """
        if self.structure == "full":
            raise SettingError(
                f"{type(self).__name__}: the sites of start='fedavg' are diagonal, and those of this model are full: "
                "take covariance='diag', or leave start out"
            )
        if self.averaging is None:
            return PointSites(temperature=self.temperature)
        averaging, scale = self.averaging.algorithm(), self.averaging.scale
        return PointSites(temperature=self.temperature, averaging=averaging, scale=scale)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """At the warm start's sites, or at the prior with sites equal to one.

        Raises:
            ModelError: the mode is at infinity, or there are many, along a line.
            SettingError: the guide is hand-written, which another algorithm federates.
        """
        if is_hand_written(self.guide):
            raise SettingError(f"{type(self).__name__}: a hand-written guide is federated by `delegate()`, as run does")
        structure = self.structure
        if start is not None and float(start.shared.get("fall", 0.0)) > ESCAPING:
            raise ModelError(f"{type(self).__name__}: {sentences.MODE_AT_INFINITY}")
        if start is not None and problem.layout.improper and (free := flat_direction(gaussian(start.shared), problem)):
            raise ModelError(
                f"{type(self).__name__}: the posterior is improper: along {free} the density is flat, since the data "
                "say nothing of it, nor do the priors. Give proper priors, or leave out what others express"
            )
        if start is None:
            q = prior = fit_prior(self, problem, generator)
            sites = flat_site(problem, structure, num_clients)
        else:
            q, sites, prior = warm_sites(start, self.min_curvature, lambda q: self.narrowed(problem, q))
            if self.start == "few_rows":
                times = self.rows_of_rounds(problem.num_rows) / self.rows_before(problem)
                q, share = rows_first.as_of_more(q, prior, times, num_clients)
                sites = flat_site(problem, structure, num_clients).product(batched(share))
        shared, local = self._states(problem, q, prior, sites)
        if start is not None and "level" in shared and problem.traits.layers:
            dim = problem.dim if self._few_rows is not None else 0
            told = ascent.of_network(mode_level(start.shared), self.rows_of_rounds(problem.num_rows), dim)
            if self.start == "few_rows":
                told["radius"] = ascent.FIRST_RADIUS  # q is that near
            shared |= {name: torch.full_like(shared[name], value) for name, value in told.items()}
        return shared, local

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """q = t_0 Π t_k of the clients that are there, each with the site that it had.

        Raises:
            SettingError: the clients keep no sites, or those that are left make no distribution.
        """
        kept = gaussian({name: value[origin] for name, value in local.items()})
        prior, sites = gaussian(shared, "prior_"), kept_where(origin >= 0, kept)
        q = prior.product(sites.product_over(0))
        if not bool(q.is_proper()):
            raise SettingError(
                f"{type(self).__name__}: the prior and the sites of the clients that are left are no distribution: run "
                "it afresh on them"
            )
        return self._states(problem, q, prior, sites)

    def _states(self, problem: Problem, q: Gaussian, prior: Gaussian, sites: Gaussian) -> tuple[State, State]:
        """The server's and the clients' states at given sites."""
        num_clients, structure = len(sites.eta), self.structure
        one = torch.ones((), dtype=torch.float64, device=q.eta.device)
        shared = {
            **as_state(q),
            **as_state(prior, "prior_"),
            **as_state(flat_site(problem, structure), "prior_delta_"),
            "num_clients": torch.tensor(num_clients),
            "fractions": one.expand(num_clients).clone(),
            "prior_value": torch.zeros_like(one),
            "prior_known": torch.tensor(not self.climbs and self._prior_stays(problem, q, prior)),
            "reset": torch.zeros_like(one),
            "cut": torch.zeros_like(one),
            **as_state(flat_site(problem, structure), "added_"),
        }
        if isinstance(self.client, Newton):
            shared |= {**self.step_control.before(q), **ascent.nothing_best(q)}
        if self.server_optimiser is not None:
            shared |= prefixed(OPTIM, self._optimiser("server").init(as_state(q), self._rate))
        return shared, self.client_state(sites)

    def client_state(self, sites: Gaussian) -> State:
        """What the clients keep: their sites, and the state of the client optimiser."""
        state = as_state(sites)
        if self.client_optimiser is None:
            return state
        zero = self._optimiser("client").init({name: value[0] for name, value in state.items()}, self._rate)
        return state | prefixed(
            OPTIM, {name: value.expand(len(sites.eta), *value.shape).clone() for name, value in zero.items()}
        )

    def _optimiser(self, whose: Literal["server", "client"]) -> Optimiser:
        return cast(Optimiser, self.server_optimiser if whose == "server" else self.client_optimiser)

    @property
    def _rate(self) -> float:
        """The optimisers' learning rate."""
        return cast(float, self.damping)

    def prepare(self, problem: Problem, shared: State) -> State:
        """The change of the prior's site, by the same step as the clients'; none where it is known to have none."""
        if bool(shared["prior_known"]):
            return shared
        q, prior, points = batched(gaussian(shared)), gaussian(shared, "prior_"), None
        if isinstance(self.inference, IVON):
            points = few_points(q, len(self.points(q)))
        moments, delta = self._prior_change(problem, q, prior, self.points(q) if points is None else points)
        if points is not None and not unchanged(prior, delta):
            moments, delta = self._prior_change(problem, q, prior, self.points(q))
        return {**shared, **as_state(delta, "prior_delta_"), "prior_value": moments.value[0]}

    def _prior_stays(self, problem: Problem, q: Gaussian, prior: Gaussian) -> bool:
        """Whether the prior's site is the same near q and far from it, as a Gaussian prior's is: then no round asks it.

        Where clients say what the bound is made of, its mean log density is a part of that.
        """
        if not bool(q.is_proper()):
            return False
        for wide in NEAR_AND_FAR:
            at = batched(at_mean(type(q)(q.precision / wide**2, q.eta), q.mean()))
            if not unchanged(prior, self._prior_change(problem, at, prior, spread_points(at, FEWEST_POINTS))[1]):
                return False
        return True

    def _prior_change(self, problem: Problem, q: Gaussian, prior: Gaussian, points: Tensor) -> tuple[Moments, Gaussian]:
        """Means of the log prior over points under q, and the change of the prior's site by an expected Newton step."""
        moments = self.derivatives().of_prior(problem, points)
        return moments, unbatched(site_of(moments, q.mean())).quotient(prior)

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q alone."""
        return super().download(as_state(gaussian(shared)), clients)

    def _numerics(self, problem: Problem) -> Numerics:
        """How derivatives and expectations are computed for this model."""
        derivatives = self.derivatives()
        return Numerics(
            derivatives=derivatives,
            exact=derivatives.exact(problem.dim),
            num_points=self.num_points,
            min_curvature=self.min_curvature,
            min_fraction=self.min_fraction,
            margin=self.margin,
        )

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The clients' inference's randomness."""
        return self.inference.draw_noise(problem, num_rows, generator)

    def old_site(self, shared: State, local: State) -> Gaussian:
        """The sites that the clients' changes refer to, (C,)."""
        return gaussian(local)

    def cavity(self, shared: State, site: Gaussian) -> Gaussian:
        """`q_-k`, step 2 of Algorithm 4, (C,)."""
        return gaussian(shared).quotient(site)

    def begin_at(self, shared: State, local: State, cavity: Gaussian) -> Gaussian:
        """Where clients begin, (C,): at q."""
        return gaussian(shared)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Changes of sites, steps 2 to 4 of Algorithm 4; step 5 is in `settle`."""
        site = self.old_site(shared, local)
        cavity = self.cavity(shared, site)
        received = Received(self.begin_at(shared, local, cavity), cavity)
        found = self.inference.infer(problem, self._numerics(problem), received, data, noise)
        delta, usable = changes(found, site, data.num_rows)
        info = {**found.info, "cavity_proper": cavity.is_proper().double(), "usable": usable.double()}
        message = {**as_state(delta), "usable": usable}
        if self.isotropic:
            message["precision"] = delta.precision[:, :1]
        if self.climbs:
            message["value"] = torch.where(usable, found.info["expected_log_lik"], 0.0).nan_to_num()
        return message, {**local, **as_state(delta, "delta_")}, info

    @property
    def isotropic(self) -> bool:
        """Whether every site's precision is a multiple of the identity, of which one number is sent (Section 2.2.2)."""
        scaled = isinstance(self.client, Identity) and self.client.scale is not None
        starts_so = self.start == "prior" or (self.start == "fedavg" and self.averaging is not None)
        return scaled and starts_so and self.covariance == "diag" and not self.additive

    def changes_of(self, messages: State) -> Gaussian:
        """The clients' changes of their sites, (C,), from what they sent."""
        precision, eta = messages["precision"], messages["eta"]
        return gaussian({"precision": precision.expand_as(eta) if self.isotropic else precision, "eta": eta})

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Changes beyond what q and the other clients' changes allow."""
        if isinstance(self.client, IVON):
            return large_objections(gaussian(received), self.changes_of(messages))
        alike = {name: received[name][:1] for name in ("precision", "eta")}
        return message_limits.natural(gaussian(alike), self.changes_of(messages), messages.get("value"))

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Algorithm 3, with fractions that keep q a distribution."""
        q, sent = gaussian(shared), self.changes_of(messages)
        if self.changes == "mean":
            sent = sent.power(1.0 / len(weights))
        deltas = joined(gaussian(shared, "prior_delta_"), sent)
        damping, move = self.fraction_for(len(weights)), deltas.product_over(0)
        everyone = len(weights) == int(shared["num_clients"])
        known: State = {}
        told = "value" in messages  # not where one client's word must not decide
        if self.climbs and everyone and told:
            value = self._value(shared, messages)
            shared = shared | ascent.climbed(shared, value)
            if ascent.is_slow(shared):
                return self._gone_back(shared, ascent.top(shared, value), {})
            back = ascent.way_back(shared, value, self.step_control.fall)
            if back is not None:
                return self._gone_back(shared, *back)
            known = ascent.kept(shared, value, move, self.step_control.fall) if bool(value.isfinite()) else {}
        if self.server_optimiser is None:
            by_value = told or not self.climbs
            new, steps, fractions, state = self._step(shared, deltas, move, known, len(weights), by_value)
        else:
            steps, limits = deltas.power(damping), Limits(damping, self.min_fraction, self.margin)
            new, kept, state = server_step(self._optimiser("server"), shared, q, move, limits)
            fractions = q.eta.new_full((len(deltas.eta),), damping if kept > 0 else 0.0)
        prior = gaussian(shared, "prior_").product(type(q)(steps.precision[0], steps.eta[0]))
        taken = fractions[1:] * messages["usable"]
        return {
            **shared,
            "cut": torch.zeros_like(shared["cut"]),
            **state,
            **as_state(new),
            **as_state(prior, "prior_"),
            "fractions": taken,
            "reset": torch.zeros_like(shared["reset"]),
        }

    def _step(
        self,
        shared: State,
        deltas: Gaussian,
        move: Gaussian,
        known: State,
        clients: int,
        by_value: bool,
    ) -> tuple[Gaussian, Gaussian, Tensor, State]:
        """q after a round, what was made of each change (1 + C,), its fraction (1 + C,), and what the server keeps.

        Args:
            shared: the state before the round.
            deltas: the changes of the prior's site and of the clients', (1 + C,).
            move: their product.
            known: what the bound says of this round, with the `radius` that the step may have; empty where nothing.
            clients: how many have taken part.
            by_value: whether the bound is told in this round, where it is to be.
        """
        q, newton = gaussian(shared), isinstance(self.client, Newton)
        damping, everyone = self.fraction_for(clients), clients == int(shared["num_clients"])
        share, state = self.step_control.held_back(shared, move, clients, by_value) if newton else (1.0, {})
        if known:
            most = ascent.within(q, move, share, float(known["radius"]))
            share, known["cut"] = most, q.eta.new_tensor(float(most < share))
        fractions = fractions_of(q, deltas, Limits(damping * share, self.min_fraction, self.margin))
        steps = deltas.power(fractions)
        whole = self._single and everyone and by_value and bool((fractions == damping).all())
        added = self.step_control.added(shared, move, whole, damping) if newton else nothing_added(q)
        state |= known | added
        return q.product(steps.product_over(0)).product(gaussian(state, "added_")), steps, fractions, state

    @property
    def climbs(self) -> bool:
        """Whether the clients say what the bound is made of: where it is known which q their expectations are under."""
        return self._single and not self._optimised and not self.additive

    @property
    def _single(self) -> bool:
        """Whether a client's change is one expected Newton step, whose length is known."""
        return isinstance(self.client, Newton) and self.client.steps == 1

    @property
    def _optimised(self) -> bool:
        """Whether optimisers decide on the steps of q or of the sites."""
        return self.server_optimiser is not None or self.client_optimiser is not None

    def _value(self, shared: State, messages: State) -> Tensor:
        """The evidence's lower bound at q, NaN where an expectation or a derivative was not finite, ()."""
        prior = gaussian(shared, "prior_delta_")
        sound = messages["usable"].all() & prior.precision.isfinite().all() & prior.eta.isfinite().all()
        value = ascent.bound(gaussian(shared), shared["prior_value"] + messages["value"].sum())
        return torch.where(sound, value, torch.nan)

    def _gone_back(self, shared: State, new: Gaussian, known: State) -> State:
        """The state at a q in place of one that was no good: all sites become its equal shares, as before any round.

        What they had at that q says nothing, and a change from there could not be told from a dishonest one.
        """
        q, still = gaussian(shared), gaussian(shared, "prior_")
        nothing = as_state(type(q)(torch.zeros_like(still.precision), torch.zeros_like(still.eta)), "prior_delta_")
        return {
            **shared,
            **known,
            **nothing,
            **as_state(new),
            **self.step_control.nothing_known(q),
            **as_state(new.quotient(still), "added_"),
            "reset": torch.ones_like(shared["reset"]),
            "prior_value": torch.zeros_like(shared["prior_value"]),
            "fractions": q.eta.new_zeros(int(shared["num_clients"])),
        }

    def contributions(self) -> Contributions:
        """The clients' sites, as the server follows them."""
        return EPContributions(self)

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """The fractions taken of the clients' messages, and their shares of what was added to q."""
        fractions, share = after["fractions"], gaussian(after, "added_").power(1.0 / len(clients))
        shares = {name: part.expand(len(clients), *part.shape) for name, part in as_state(share, "share_").items()}
        told = {"fraction": fractions, "reset": after["reset"].expand(len(clients)), **shares}
        if self.changes == "mean":
            told["weight"] = torch.full_like(fractions, 1.0 / len(clients))
        return told, {"fraction": fractions}

    def settle(self, told: State, local: State) -> State:
        """Step 5 of Algorithm 4: the clients move their sites by what the server took of their messages."""
        delta = gaussian(local, "delta_")
        if "correction_eta" in told:
            delta = delta.product(gaussian(told, "correction_"))
        if self.changes == "mean":
            delta = delta.power(told["weight"])
        state: State = {}
        if self.client_optimiser is None:
            steps = delta.power(told["fraction"])
        else:
            steps, state = client_steps(self._optimiser("client"), self._rate, local, delta)
        site = gaussian(local).power(1 - told["reset"])
        return {**as_state(site.product(steps).product(gaussian(told, "share_"))), **state}

    def alone(self, messages: State) -> State:
        """Without the clients' log-likelihoods, by which steps are taken back."""
        return without_value(messages)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Besides `change`: the smallest fraction taken, sites skipped, whether the step was cut, the share at work.

        `change` is by the whole step, of which a round may take a part: it is what is left to go.
        """
        fractions, figures = after["fractions"], super().monitor(before, after)
        share = len(fractions) / int(after["num_clients"])
        growth = {"sd_growth": mean_growth(before, after)} if isinstance(self.client, IVON) else {}
        ends = {"in_vain": ascent.is_in_vain(after), "slow": ascent.is_slow(after)}
        return {
            **figures,
            **growth,
            **{name: 1.0 for name, ended in ends.items() if ended},
            "change": figures["change"] / self.part_taken(after),
            "fraction": float(fractions.min()),
            "skipped": float((fractions == 0).sum()),
            "cut": float(after["cut"]),
            "share": share,
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q did not move in as many rounds as let every client work once, and nothing was held back.

        Where the clients' inference is random q never comes to rest, and there is no criterion. Rounds that are in vain
        or win too little end the run, too, which has not converged then: its last takes nothing of clients' changes.
        """
        if figures[-1].get("in_vain") or figures[-1].get("slow"):
            return True
        return at_rest(figures, self.tolerance) if self.deterministic else None

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Clients whose last message could not be used, a q that moves on, optimisers that give up the invariant."""
        newton, diagonal = isinstance(self.client, Newton), self.structure == "diag"
        ends = self._ends_without_rest(record)
        notes = ends or site_warnings(record, newton)
        notes += of_some_rows(problem, self._few_rows)
        if self.settles and not ends:
            notes += unsettled_warnings(record, newton=newton, diagonal=diagonal)
        if isinstance(self.client, IVON):
            notes += network_warnings(record, problem)
        if self._optimised:
            notes.append(sentences.sites_are_not_the_quotient())
        return notes

    def _ends_without_rest(self, record: Record) -> list[Finding]:
        """Why the rounds ended though q moves on: they win too little, or are in vain."""
        samplers = record.untried("FSGLD", "DSVGD", "NUTS")
        if record.latest.get("slow"):
            return [sentences.weights_still_move(rounds=ascent.RECENT, nats=ascent.SLOW, samplers=samplers)]
        if record.latest.get("in_vain"):
            return [sentences.rounds_in_vain(returns=ascent.RETURNS, samplers=samplers)]
        return []
