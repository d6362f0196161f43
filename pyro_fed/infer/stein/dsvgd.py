"""Accurate distributed SVGD: Kassab & Simeone's Algorithm 1, with Gaussian sites that are exact at each particle.

    ∇ log p̃_k(z) = ∇ log p_0(z) + ∇ log p_k(z) / α + Σ_{j≠k} ∇ log t_j(z)                                (11), (14)
    z_n ← z_n + ε 1/N Σ_m [κ(z_m, z_n) ∇ log p̃_k(z_m) + ∇_{z_m} κ(z_m, z_n)],   L times                  (8), (13)
    ∇ log t_{k,n}(z) = η_k - Λ_k z + r_{k,n},   r_{k,n} = ∇ log p_k(z_n) / α - (η_k - Λ_k z_n)      in place of (17)

with the prior p_0, client k's likelihood p_k and site t_k, and particles z_n in coordinates that whiten a Gaussian.

**A round** visits one client.

    1. The server sends client k the particles and Π_j t_j.                                     `download`, `Received`
    2. The client divides by its site, which gives the tilted target p̃_k, Eq. (11).             `TiltedTarget`
    3. L steps of SVGD move the particles towards p̃_k, Eq. (13).                                `_step_by_rows`
    4. Its new site is exact at the particles, in place of Eq. (17).                            `Site.corrected`
    5. It sends particles and Π_j t_j back, and the server adopts them.                         `combine`

**The sites.** In the paper they are ratios of kernel density estimates, whose gradients vanish beyond a few dimensions,
and which are improper in their tails (`papers.dsvgd`). Here `survey` gives a Gaussian approximation of each client's
likelihood (its surrogate: Λ_k, η_k), and r_{k,n} corrects its gradient at the position of particle n after client k's
last turn. p_0 and p_k are exact. When the particles have converged, all r_{j,n} and the score at every particle are
exact. The fixed point is that of SVGD on the pooled data, for all surrogates and every order of the clients (as in
SAGA). The surrogates determine only the speed of convergence, and how many local steps are safe.

**Likelihoods close to their surrogates**, as for many rows or linear models. If a client's residuals hardly vary over
the particles (`_residuals_are_constant`), the client also uses its own site during the steps (`_steps_by_sites`). Its
residuals are exact before and after: the fixed point is the same, and a turn takes two scores of its rows in place of L
+ 2.

**Kernel, start and end.** The kernel `Balanced` makes two moments and the marginals accurate. Particles start as
standardised points of the Gaussian of `survey`, or at several modes or weighted points if it finds these. Steps and
turns are shorter if the start is the Gaussian nearest to a posterior of one mode. `at_rest` defines the end of a run.

**Without a maximum.** If the Gaussian phase finds no maximum (`survey`, "apart"), as for neural networks, Gaussian
surrogates do not fit, and residuals are wrong after a particle leaves its basin. Particles then start as draws of the
prior, in units of its SDs, and a turn has L steps of SVGD with the RBF kernel towards

    log p_0 + (n / n_k) log p_k / α                    n rows in total, n_k of client k

This is an incremental gradient method, biased towards the last client to first order in the step. To remove the bias,
the result is each particle's mean position over the last pass (an exponential mean over at least 20 rounds). The
remaining bias vanishes with the decaying step. The figure `apart` of every round is 1 in this case.

Letters: N `num_particles`, L `local_steps`, z `white`, Λ_j `precision`, η_j `eta`, r_j `residual`, Σ_j r_j `residuals`,
n / n_k `own_weight`. A client receives: particles, Σ_j r_j, AdaGrad's state (N, D each), and m, A, Σ_j Λ_j, Σ_j η_j.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import RoundRobin, Schedule
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_between, check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, batch_of, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.stein.at_rest import EndOfRun, particle_findings, stein_figures
from pyro_fed.infer.stein.contributions import TurnContributions
from pyro_fed.infer.stein.particles import ParticleAlgorithm
from pyro_fed.infer.stein.states import (
    SENT,
    Arrival,
    Received,
    Server,
    Site,
    TiltedTarget,
    client_scores,
    first_states,
    scores_by_sites,
    with_step_factor,
)
from pyro_fed.infer.stein.survey import BEGINNINGS, Begin, Survey
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.kernels import MEDIAN_RBF, Balanced
from pyro_fed.ops.step_sizes import AdaGrad, AdaGradState
from pyro_fed.ops.whitening import Coordinates

#: Steps after which the step has fallen to 2^-decay.
DECAY_OFFSET = 500.0
#: One kernel object for all defaults, so that equal settings compare as equal.
BALANCED = Balanced()
#: Particles, and AdaGrad's state.
Carry = tuple[Tensor, AdaGradState]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class DSVGD(ParticleAlgorithm, Indicators):
    """Accurate distributed SVGD: one client per round moves the particles; corrected sites represent the others.

    Args:
        local_steps: L, SVGD steps of a client's turn, one turn a round.
        step_size: learning rate of AdaGrad at the beginning, in SDs of the Gaussian that the particles are whitened by.
        kernel: of the SVGD direction, of `pyro_fed.ops`; the default keeps two moments and the marginals right.
        decay: power of the step's decay, rate (1 + t / 500)^-decay, in [0, 1]; 0 keeps it constant.
        start: start of the particles: "gaussian" (points under the Gaussian of FedEP, or of Laplace in many
            dimensions), "modes" (points under Laplace approximations at each mode that is
            found; in more than 12 dimensions those of one mode under FedEP's Gaussian; or weighted points where the
            posterior is elsewhere), "prior" (draws of the prior), "apart" (the same without surrogates,
            for densities that have no useful mode, as those of neural networks), or "checked" ("gaussian", unless its
            centre is no maximum: then "apart").
            "auto" searches for modes if the prior is proper, the model has at most 30 parameters and its
            rows' scores do not jump (a mode of a quantile regression has no curvature); it otherwise takes the
            Gaussian, with a check if the prior is proper and the model too large for Hessians.
        end: criterion of the run's end, a `pf.infer.EndOfRun`; not for particles that start apart, which use all
            rounds.

    References:
        Kassab & Simeone, Federated generalized Bayesian learning via distributed Stein variational gradient descent,
        Algorithm 1, Eq. (11) and (14). Liu & Wang (2018), SVGD as moment matching.

    Example:
        >>> idata = pf.run(pf.DSVGD(num_particles=100), fed)
        >>> idata = pf.run(pf.DSVGD(start="apart"), fed, num_rounds=200)  # a neural network
    """

    #: Exact chains are more informative than scores at the particles if these are in modes far apart.
    provisional: ClassVar[frozenset[str]] = frozenset({sentences.particles_are_off.code})

    #: The phase before.
    survey: ClassVar[type[Survey]] = Survey

    local_steps: int = 20
    decay: float = 0.6
    kernel: Kernel = field(default=BALANCED)
    start: Literal["auto", "gaussian", "modes", "prior", "apart", "checked"] = "auto"
    end: EndOfRun = EndOfRun()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.end, EndOfRun):
            raise SettingError(f"{type(self).__name__}: end must be a pf.infer.EndOfRun, received {self.end!r}")
        check_choice(self, "start", ("auto", *BEGINNINGS))
        check_between(self, "decay", 0, 1, "[]")
        if self.start == "apart":
            refuse_unused(
                self,
                "particles that start apart use all rounds: set num_rounds of run, or start='gaussian'",
                "end",
            )
            if isinstance(self.kernel, Balanced) and self.kernel != BALANCED:
                raise SettingError(
                    f"{type(self).__name__}: kernel={self.kernel!r} has no effect: particles that start apart share no "
                    "linear map; give a kernel such as ops.kernels.MEDIAN_RBF, or start='gaussian'"
                )

    def default_rounds(self, num_clients: int) -> int:
        """`end.max_passes` passes over the clients; the run ends when it has converged."""
        return self.end.max_passes * num_clients

    @property
    def optimiser(self) -> AdaGrad:
        """AdaGrad with a step that falls."""
        return replace(super().optimiser, power=self.decay, offset=DECAY_OFFSET)

    def default_schedule(self) -> Schedule:
        """One client in each round, in turn."""
        return RoundRobin()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The Gaussian or the search for modes, with the scores at the particles' starting points."""
        begin: Begin = chosen_setting(self, "start")
        return self.survey(num_particles=self.num_particles, begin=begin, temperature=self.temperature)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start particles from the survey's points, where the clients' residuals are known."""
        return first_states(problem, num_clients, required_start(start, self), self.num_particles)

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({name: shared[name] for name in SENT}, clients)

    # -- a turn ---------------------------------------------------------------------------------------------
    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of SVGD towards the client's tilted target, Eq. (13), and correct its site at the end."""
        arrival = Arrival.of(problem, shared, local, data, self.temperature)
        received, target, _, site = arrival
        figures, steps = self.figures_at(problem, arrival), self._steps_of_turn(shared)
        carry = received.white, AdaGradState(shared["history"], shared["steps"])
        if self._residuals_are_constant(problem, received, site, data):
            residual = target.others.residual + site.residual
            (white, optimiser), gains = self._steps_by_sites(problem, received, residual, carry, steps)
        else:
            rows, dims = with_batches(data, self.batch_size)
            step, const = self.with_kernel_for_start(received)._step_by_rows, (target, received.step_factor, rows)
            (white, optimiser), gains = problem.scan(step, carry, const, noise, steps, (0, 0, dims))
        own = client_scores(problem, received.coordinates, white, data, self.temperature)
        site = site.corrected(own, white)
        residuals = target.others.residual + site.residual
        message = {"white": white, "residuals": residuals, **optimiser._asdict(), **figures}
        info = {"client_ksd": figures["ksd"], **self.entropy_figures(gains)}
        return message, {**local, "residual": site.residual}, info

    def _step_by_rows(self, problem: Problem, carry: Carry, const: Any, picks: Any) -> tuple[Carry, Any]:
        white, optimiser = carry
        target, step_factor, rows = const
        scores = target.scores(problem, white, batch_of(rows, picks), self.temperature)
        return self.step_and_entropy(white, scores, optimiser, step_factor)

    def _steps_by_sites(
        self, problem: Problem, received: Received, residual: Tensor, carry: Carry, steps: int
    ) -> tuple[Carry, Any]:
        """Take steps of SVGD towards the prior and all clients' sites, with the residuals Σ_j r_j."""
        const = (received.coordinates, received.sites._replace(residual=residual), received.step_factor)
        found: tuple[Carry, Any] = problem.scan(self._step_by_sites, carry, const, (), steps)
        return found

    def _step_by_sites(self, problem: Problem, carry: Carry, const: Any, _: Any) -> tuple[Carry, Any]:
        white, optimiser = carry
        coordinates, sites, step_factor = const
        return self.step_and_entropy(white, scores_by_sites(problem, white, coordinates, sites), optimiser, step_factor)

    def _steps_of_turn(self, shared: State) -> int:
        """Number of steps in a turn."""
        near = self.batch_size is None and bool(shared["near"].any())
        return -(-self.local_steps // 2) if near else self.local_steps

    def _residuals_are_constant(self, problem: Problem, received: Received, site: Site, data: ClientData) -> bool:
        """Whether residuals hardly vary over the particles, so that a site can replace the client's rows in a turn."""
        if self.batch_size is not None or bool(received.apart.any()):
            return False
        varies = site.residual.std(-2).amax(-1)
        return bool((varies <= NEGLIGIBLE * data.num_rows / problem.num_rows).all())

    def with_kernel_for_start(self, received: Received) -> Self:
        """This algorithm with the kernel for the start: particles that are far apart share no linear map."""
        apart = bool(received.apart.any()) and isinstance(self.kernel, Balanced)
        return replace(self, kernel=MEDIAN_RBF) if apart else self

    # -- what is known of the particles -----------------------------------------------------------------------
    def figures_at(self, problem: Problem, arrival: Arrival) -> State:
        """The diagnostics of the particles by each client's target, see `stein_figures`."""
        received, target, own, _ = arrival
        found: State = problem.mapped(self.with_kernel_for_start(received)._figures, (0, 0, 0))(
            received.white, target, own
        )
        return found

    def _figures(self, problem: Problem, white: Tensor, target: TiltedTarget, own: Tensor) -> State:
        others = scores_by_sites(problem, white, target.coordinates, target.others)
        return stein_figures(white, others + target.own_weight * own, self.kernel)

    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """The KSD of the particles from the client's target, or the client's likelihood scores there."""
        arrival = Arrival.of(problem, shared, local, data, self.temperature)
        return {"ksd": self.figures_at(problem, arrival)["ksd"]} if kind == "ksd" else {"scores": arrival.own}

    def positions(self, shared: State) -> Tensor:
        """The particles (N, D) in whitened coordinates, in which they move."""
        return shared["white"]

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to entries that have grown without bound, and to impossible states of the optimiser."""
        objections = super().objections(received, messages)
        if "history" not in messages:  # where the server has it
            return objections
        steps = self._steps_of_turn(received)
        return {
            **objections,
            "its running mean of squares is negative": (messages["history"] < 0).flatten(1).any(1),
            f"it has not taken {steps} steps": messages["steps"] != received["steps"] + steps,
        }

    # -- validation of turns ----------------------------------------------------------------------------------
    def contributions(self) -> Contributions:
        return TurnContributions(self)

    def server_turn(self, problem: Problem, shared: State) -> tuple[State, State]:
        """A turn computed from sites alone, to check a client's or in its place: what moves, and its figures."""
        one = {name: value[None] for name, value in shared.items()}
        received = Received.of(one)
        coordinates, sites = received.coordinates, received.sites
        figures = problem.mapped(self._figures_by_sites, (0, 0, 0))(received.white, coordinates, sites)
        carry = received.white, AdaGradState(one["history"], one["steps"])
        (white, optimiser), _ = self._steps_by_sites(problem, received, sites.residual, carry, self.local_steps)
        moved = {"white": white[0], "history": optimiser.history[0], "steps": optimiser.steps[0]}
        return moved, {name: value[0].double() for name, value in figures.items()}

    def _figures_by_sites(self, problem: Problem, white: Tensor, coordinates: Coordinates, sites: Site) -> State:
        return stein_figures(white, scores_by_sites(problem, white, coordinates, sites), self.kernel)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Adopt the client's particles, and update the mean positions."""
        self.require_one(weights)
        before = entries_as(Server, shared)
        server = before.adopting({name: value[0] for name, value in messages.items()})
        return as_entries(with_step_factor(server.with_average(before)))

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """KSD, that of draws, errors of moments, spread in the Gaussian's SDs, effective number, move in these SDs."""
        return entries_as(Server, after).figures(entries_as(Server, before))

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return self.end.reached(figures)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about moments that contradict the scores, and too few particles to span the space."""
        usual = self.default_rounds(len(record.client_names))
        return particle_findings(record, self.num_particles, problem.dim, usual)

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The particles, (1, N, D); for those that started apart, their recent mean positions."""
        server = entries_as(Server, shared)
        white = server.averaged if bool(server.apart) else server.white
        return Coordinates(server.mean, server.factor).model(white)[None]
