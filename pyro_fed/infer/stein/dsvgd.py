"""Accurate distributed SVGD: in whitened coordinates, with Gaussian sites that are corrected at each particle.

**The published algorithm.** Kassab & Simeone's Algorithm 1 visits one client a round. Client k moves the particles
towards its tilted target,

    ∇ log p̃_k = ∇ log p_0 + ∇ log p_k + Σ_{j≠k} ∇ log t_j,                                      (11), (14)

with the prior p_0, the client's likelihood p_k and sites t_j of the other clients. There the sites are ratios of kernel
density estimates, whose gradients vanish beyond a few dimensions, and which are improper in their tails
(`paper.dsvgd`).

**The sites here.** `survey` gives a Gaussian approximation of the posterior, and of each client's likelihood (its
surrogate). In coordinates z that whiten the former, the site of client j at particle n is its surrogate with a
correction r of its gradient:

    ∇ log t_{j,n}(z) = η_j - Λ_j z + r_{j,n},    r_{j,n} = ∇ log p_j(z_n) - (η_j - Λ_j z_n)

where z_n is where client j left the particle after its last turn. p_0 and p_k are exact. Once the particles are at
rest, all r_{j,n} are exact, and so is the score at every particle. So the fixed point is that of SVGD on the pooled
data, whatever the surrogates are and whichever client came last. (With surrogates alone it depends on the last client.
The argument is that of SAGA.) The surrogates only decide how fast particles get there, and how many local steps are
safe.

**A turn of client k.** L steps of SVGD towards p̃_k. Then the client computes its new residuals r_{k,n}, and sends the
particles and Σ_j r_j. With many rows a likelihood is nearly its surrogate. If a client's residuals hardly vary over the
particles (`STRAIGHT`), it uses its own site, too, during the steps. Its residuals are exact before and after these:
the fixed point is the same, and a turn takes two scores of its rows in place of L + 2.

**Kernel, start and steps.** The kernel `Balanced` keeps two moments and the marginals right. Particles start as
standardised points of the Gaussian of `survey`, or, where it finds several modes or mass elsewhere, at these. The step
decays. Steps and turns are shorter where the start is the Gaussian nearest to a posterior of one mode (`NEAR`).

**When a run ends.** It ends after a pass over the clients in which the kernelised Stein discrepancy is a twentieth of
that of N exact draws of the posterior (`ksd_and_noise`), or has stopped falling. To go on would fit the particles to
the discrepancy of N points, not to the posterior: along a skewed parameter, such as the precision of a hierarchical
prior, they would drift outwards while the discrepancy falls.

**When it has converged.** A small discrepancy does not show that the particles are right. Its reference, the
discrepancy of exact draws, is computed at the particles, so that bad particles raise it; and with too small a step it
stops falling at once. So a run goes on unless, besides, the scores at the particles say that no mean is off by
`MATTERS` SDs and no SD by the factor `SD_MATTERS` (`ops.stein.moments_off`, in units that no particle can stretch), and
the discrepancy is not larger than that of exact draws by chance. A run that meets these two conditions after its last
pass has converged too, even if its discrepancy is still falling.

**Without a maximum.** Where the Gaussian phase finds no maximum (`survey`, "apart"), as of neural networks, surrogates
would be wrong, and residuals out of date once particles have left a basin. Then particles start as draws of the prior,
in units of its SDs, and a turn has L steps of SVGD with the RBF kernel towards

    log p_0 + (n / n_k) log p_k                        n rows in all, n_k of client k

an incremental gradient method. The last client biases it, to first order in the step. To remove that, each particle's
mean position over the last pass is returned (an exponential mean, over at least 20 rounds). What is left vanishes with
the decaying step. The figure `apart` of every round says that this is done.

Letters: N `num_particles`, L `local_steps`, z `white`, Λ_j `precision`, η_j `eta`, r_j `residual`, Σ_j r_j `residuals`,
n / n_k `own_weight`. A client receives: particles, Σ_j r_j, AdaGrad's state (N, D each), and m, A, Σ_j Λ_j, Σ_j η_j.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import RoundRobin, Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.derivatives.nodes import MANY
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, batch_of, with_batches
from pyro_fed.density.scores import clients_likelihood_scores, prior_scores
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.whitening import Coordinates, site_scores
from pyro_fed.infer.stein.contributions import TurnContributions
from pyro_fed.infer.stein.particles import ParticleAlgorithm
from pyro_fed.infer.stein.survey import BEGINNINGS, Begin, Survey, residuals_at
from pyro_fed.ops.balanced import Balanced
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.kernels import MEDIAN_RBF
from pyro_fed.ops.stein import PARTICLES_PER_COORDINATE, effective_number, ksd_and_noise, moments_off, spread
from pyro_fed.ops.step_sizes import AdaGradState

#: Spread of the particles, in SDs of the Gaussian of `survey`, below which they have collapsed.
COLLAPSED = 0.5
#: Fewer particles than this have too short tails to stand for a marginal that is not Gaussian: points at a Gaussian's
#: quantiles have a kurtosis of 1.5 where there are three and of 2.1 where there are eight, in place of 3.
FEWEST = 8
#: Particles that start from a census are draws of the posterior: they take this share of a step, and half of it again
#: after each pass that leaves their discrepancy no lower.
SETTLING = 0.25
#: Particles that start under the Gaussian nearest to a posterior of one mode only have to find its shape. They take
#: this share of a step, since AdaGrad's first steps have one size, however near the target is; and half as many steps a
#: turn.
NEAR, SHORTER = 0.4, 2
#: The fewest steps that these particles take in all: the discrepancy hardly shows what a skewed parameter still lacks.
LEAST_STEPS = 100
#: Median size of a standard normal number.
NORMAL_MEDIAN = 0.6745
#: The squared discrepancy of exact draws exceeds this many times its mean in at most 5 % of cases. It is a weighted sum
#: of squared normal numbers, whose tail is longest if it is a single one (Székely & Bakirov 2003), χ² with one degree.
BY_CHANCE = 3.84
#: Let a client have the share s of all rows. If its residuals vary over the particles by less than `STRAIGHT` s in any
#: coordinate, its site with the particles' own residuals can replace its rows during a turn: over a whole SD the error
#: is at most this share of the posterior's score at one SD, and the next turn removes it. This is tried where there are
#: `MANY` rows for each parameter.
STRAIGHT = 0.1
#: The parts of the server's state that particles need, besides their residuals, if they move towards sites only.
TOWARDS_SITES = ("mean", "factor", "precision", "eta", "pace")
#: One kernel object for all defaults, so that equal settings are equal.
BALANCED = Balanced()


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class DSVGD(ParticleAlgorithm, Indicators):
    """Accurate distributed SVGD: one client a round moves the particles, the others are sites corrected at each.

    Args:
        num_particles: N, at least 2.
        local_steps: L, SVGD steps of a client's turn, one turn a round.
        step_size: learning rate of AdaGrad at the beginning, in SDs of the Gaussian that the particles are whitened by.
        momentum: weight of the past in AdaGrad's running mean of squares, in [0, 1).
        fudge: added to the root of that mean.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        kernel: of the SVGD direction, of `pyro_fed.ops`; the default keeps two moments and the marginals right.
        decay: power of the step's decay, rate (1 + t / decay_offset)^-decay, in [0, 1]; 0 keeps it constant.
        decay_offset: steps after which the step has fallen to 2^-decay; only with a `decay`.
        entropy: keep by how much each turn changes the particles' entropy, exactly (figure `entropy_gain`, nats); costs
            D passes over the kernel a step.
        start: where the particles start: "gaussian" (points under the Gaussian of FedEP, or of Laplace in many
            dimensions), "modes" (points under Laplace approximations at each mode that is
            found; in more than 12 dimensions those of one mode under FedEP's Gaussian; or draws of a census where the
            posterior is elsewhere), "prior" (draws of the prior), "apart" (the same without surrogates,
            for densities that have no useful mode, as those of neural networks), or "checked" ("gaussian", unless its
            centre is no maximum: then "apart").
            "auto" looks for modes where the prior is proper, the model has at most `max_modes_dim` parameters and its
            rows' scores do not jump (a mode of a quantile regression has no curvature); it takes the Gaussian
            elsewhere, with a check where the prior is proper and the model too large for Hessians.
        max_modes_dim: largest D for which "auto" looks for modes; of that alone.
        max_passes: passes over the clients, at most.
        noise: the run ends when the KSD is at most this share of that of N exact draws, and the scores have nothing
            against the moments.
        min_fall: it also ends when `patience` passes together have not lowered the KSD by this share, under the same
            condition.
        patience: see `min_fall`.
        averaged_rounds: particles that started apart are returned at their mean over so many rounds, at least a pass.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Kassab & Simeone, Federated generalized Bayesian learning via distributed Stein variational gradient descent,
        Algorithm 1, Eq. (11) and (14). Liu & Wang (2018), SVGD as moment matching.

    Example:
        >>> idata = pf.run(pf.DSVGD(num_particles=100), fed)
        >>> idata = pf.run(pf.DSVGD(start="apart"), fed, num_rounds=200)  # a neural network
    """

    #: Scores at the particles tell less than exact chains where the particles are in modes far apart.
    provisional: ClassVar[frozenset[str]] = frozenset({sentences.particles_are_off.code})

    local_steps: int = 20
    decay: float = 0.6
    decay_offset: float = 500.0
    kernel: Kernel = field(default=BALANCED)
    start: Literal["auto", "gaussian", "modes", "prior", "apart", "checked"] = "auto"
    max_modes_dim: int = 30
    max_passes: int = 20
    noise: float = 0.05
    min_fall: float = 0.05
    patience: int = 3
    averaged_rounds: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "noise")
        check_choice(self, "start", ("auto", *BEGINNINGS))
        check_at_least(self, 1, "max_passes", "max_modes_dim", "patience", "averaged_rounds")
        check_between(self, "min_fall", 0, 1)
        if self.start != "auto":
            refuse_unused(self, "only start='auto' has the choice", "max_modes_dim")
        if self.start in ("gaussian", "modes", "prior"):
            refuse_unused(self, "only particles that start apart are averaged: start='apart'", "averaged_rounds")
        if self.start == "apart":
            refuse_unused(
                self,
                "particles that start apart have all their rounds: give num_rounds to run, or start='gaussian'",
                *("noise", "min_fall", "patience"),
            )
            if isinstance(self.kernel, Balanced) and self.kernel != BALANCED:
                raise SettingError(
                    f"{type(self).__name__}: kernel={self.kernel!r} has no effect: particles that start apart share no "
                    "linear map; give a kernel such as ops.kernels.MEDIAN_RBF, or start='gaussian'"
                )

    def default_rounds(self, num_clients: int) -> int:
        """`max_passes` over the clients; it stops by itself."""
        return self.max_passes * num_clients

    def default_schedule(self) -> Schedule:
        """One client a round, in turn."""
        return RoundRobin()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The Gaussian or the search for modes, and the scores where the particles start."""
        begin: Begin = chosen_setting(self, "start")
        return self.survey()(num_particles=self.num_particles, begin=begin, temperature=self.temperature)

    def survey(self) -> type[Survey]:
        """The algorithm of the phase before."""
        return Survey

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Particles where the survey says, with the clients' residuals known there."""
        start = required_start(start, self)
        found, sites = start.shared, gaussian(start.local)
        if bool(found["apart"]):
            found, sites = found | as_state(gaussian(found).power(0.0)), sites.power(0.0)
        white, scores = found["white"], found.get("held_scores", start.local["scores"])
        residual, residuals = residuals_at(scores, sites, white, problem.dtype)
        coordinates = Coordinates(found["mean"], found["factor"])
        tensors = {
            "white": white,
            "averaged": white,
            "residuals": residuals,
            "history": torch.zeros_like(white),
            "steps": white.new_zeros(()),
            **coordinates._asdict(),
            **as_state(gaussian(found)),
        }
        shared = {name: value.to(problem.dtype) for name, value in tensors.items()}
        seen = float((found["shares"] > 0.5 / self.num_particles).sum())  # those that got a particle, rounded
        figures = {
            "ksd": torch.nan,
            "noise": torch.nan,
            "mean_off": torch.nan,
            "sd_off": torch.nan,
            "modes": seen,
            "apart": float(found["apart"]),
            "pass": 0.0,
            "pass_length": 1.0 / num_clients,
            "pace": self._first_pace(problem, found),
            "near": float(found["near"]),
            "census": float(found["census"]),
            "pass_ksd": 0.0,
            "lowest_ksd": torch.inf,
        }
        shared |= {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
        local = {"residual": residual, **as_state(sites)}
        return shared, {name: value.to(problem.dtype) for name, value in local.items()}

    def _first_pace(self, problem: Problem, found: State) -> float:
        """What of a step particles take that begin as draws of the posterior, or near them."""
        if bool(found["census"]):
            return SETTLING / self._narrower(problem, found)
        return NEAR if bool(found["near"]) else 1.0

    def _narrower(self, problem: Problem, found: State) -> float:
        """How many times as narrow as all particles together the density is around them, at least one.

        The score of N(0, 1) has the median `NORMAL_MEDIAN` in size, that of modes a tenth as wide ten times that. Steps
        of a part of the whole's SD would carry particles from one to the next.
        """
        coordinates = Coordinates(found["mean"], found["factor"])
        prior = prior_scores(problem, coordinates.model(found["white"]).to(problem.dtype)).double()
        size = (found["scores"] + coordinates.pull(prior)).abs().nan_to_num(nan=0.0)
        return max(1.0, float(size.median(0).values.max()) / NORMAL_MEDIAN)

    def download(self, shared: State, clients: Tensor) -> State:
        """Everything but the server's figures."""
        names = (
            "white",
            "residuals",
            "history",
            "steps",
            "mean",
            "factor",
            "precision",
            "eta",
            "apart",
            "pace",
            "near",
        )
        return super().download({name: shared[name] for name in names}, clients)

    # -- corrected sites ------------------------------------------------------------------------------------
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
            "pace": shared["pace"].to(problem.dtype),
            "own_weight": 1.0 + apart * (share - 1.0),
            "tilt": (1.0 - apart)[:, None, None] * (shared["residuals"] - local["residual"]),
            "precision": shared["precision"] - local["precision"],
            "eta": shared["eta"] - local["eta"],
        }

    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """The KSD of the particles from the client's target, or the client's likelihood scores there."""
        const = self.others(problem, shared, local, data)
        own = self.own_scores(problem, const, shared["white"], data)
        if kind == "ksd":
            discrepancy = problem.mapped(self.mover(shared).discrepancy, (0, 0, 0))
            return {"ksd": discrepancy(shared["white"], const, own)["ksd"]}
        return {"scores": own}

    def positions(self, shared: State) -> Tensor:
        """The particles (N, D) in whitened coordinates, in which they move."""
        return shared["white"]

    def target_scores(self, problem: Problem, white: Tensor, const: State, batch: Batch) -> Tensor:
        """The score of a client's target at whitened particles, (N, D), from `others`."""
        coordinates = Coordinates(const["mean"], const["factor"])
        batch = batch._replace(weight=const["own_weight"] * batch.weight)

        def log_target(z: Tensor) -> Tensor:
            return problem.log_joint(coordinates.model(z), batch, self.temperature)

        others = site_scores(const["precision"], const["eta"], white) + const["tilt"]
        own: Tensor = problem.vmap(grad(log_target))(white)
        return own + others

    def own_scores(self, problem: Problem, const: State, white: Tensor, data: ClientData) -> Tensor:
        """The clients' own likelihood scores, (C, N, D)."""
        coordinates = Coordinates(const["mean"], const["factor"])
        scores = clients_likelihood_scores(problem, coordinates.model(white), data)
        return coordinates.pull(scores) / self.temperature

    def discrepancy(self, problem: Problem, white: Tensor, const: State, own: Tensor) -> State:
        """KSD of the particles from a client's target, that of as many exact draws, and how far the moments are off."""
        others = self._sites_scores(problem, white, {**const, "residuals": const["tilt"]})
        return judged(white, others + const["own_weight"] * own, self.kernel)

    # -- a turn ---------------------------------------------------------------------------------------------
    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """L steps towards the client's own target, then its residual where the particles are now."""
        const, mover = self.others(problem, shared, local, data), self.mover(shared)
        own = self.own_scores(problem, const, shared["white"], data)
        figures = problem.mapped(mover.discrepancy, (0, 0, 0))(shared["white"], const, own)
        residual = residual_of(own, shared["white"], local)
        carry, steps = (shared["white"], AdaGradState(shared["history"], shared["steps"])), self._turn(shared)
        if self._straight(problem, shared, residual, data):
            towards = {name: shared[name] for name in TOWARDS_SITES} | {"residuals": const["tilt"] + residual}
            (white, optimiser), gains = problem.scan(mover._sites_step, carry, towards, (), steps)
        else:
            rows, dims = with_batches(data, self.batch_size)
            (white, optimiser), gains = problem.scan(
                mover._step, carry, (const, rows), noise, steps, (dict.fromkeys(const, 0), dims)
            )
        residual = residual_of(self.own_scores(problem, const, white, data), white, local)
        message = {
            "white": white,
            "residuals": const["tilt"] + residual,
            "history": optimiser.history,
            "steps": optimiser.steps,
            **figures,
        }
        return message, {**local, "residual": residual}, {"client_ksd": figures["ksd"], **self.entropy_figures(gains)}

    def _turn(self, shared: State) -> int:
        """Steps of a turn."""
        near = self.batch_size is None and bool(shared["near"].any())
        return -(-self.local_steps // SHORTER) if near else self.local_steps

    def _straight(self, problem: Problem, shared: State, residual: Tensor, data: ClientData) -> bool:
        """Whether rows are so many that the client's site stands for them while the particles move, see `STRAIGHT`.

        One client has a turn, so that none decides for another.
        """
        if self.batch_size is not None or bool(shared["apart"].any()) or problem.num_rows < MANY * problem.dim:
            return False
        varies = residual.std(-2).amax(-1)
        return bool((varies <= STRAIGHT * data.num_rows / problem.num_rows).all())

    def _step(self, problem: Problem, carry: Any, inputs: Any, picks: Any) -> tuple[Any, tuple[Tensor, ...]]:
        white, optimiser = carry
        const, rows = inputs
        scores = self.target_scores(problem, white, const, batch_of(rows, picks))
        return self.stepped(white, scores, optimiser, const["pace"])

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Besides what has grown beyond measure, an optimiser's state that no turn leaves behind."""
        found = super().objections(received, messages)
        if "history" not in messages:  # where the server has it
            return found
        turn = self._turn(received)
        return {
            **found,
            "its running mean of squares is negative": (messages["history"] < 0).flatten(1).any(1),
            f"it has not taken {turn} steps": messages["steps"] != received["steps"] + turn,
        }

    # -- a turn of the server's own, beside which clients' turns are judged -----------------------------------
    def contributions(self) -> Contributions:
        """The clients' turns and residuals."""
        return TurnContributions(self)

    def server_turn(self, problem: Problem, shared: State) -> tuple[State, State]:
        """L steps of the server towards the prior and all clients' sites: particles and optimiser, and what is judged.

        Args:
            problem: the model's densities; its prior alone is asked.
            shared: the server's state.
        """
        const = {name: shared[name][None] for name in (*TOWARDS_SITES, "residuals")}
        figures = problem.mapped(self._server_figures, (0, 0))(shared["white"][None], const)
        carry = (shared["white"][None], AdaGradState(shared["history"][None], shared["steps"][None]))
        (white, optimiser), _ = problem.scan(self._sites_step, carry, const, (), self.local_steps)
        moved = {"white": white[0], "history": optimiser.history[0], "steps": optimiser.steps[0]}
        return moved, {name: value[0].double() for name, value in figures.items()}

    def _sites_scores(self, problem: Problem, white: Tensor, const: State) -> Tensor:
        coordinates = Coordinates(const["mean"], const["factor"])
        prior = coordinates.pull(prior_scores(problem, coordinates.model(white)))
        return prior + site_scores(const["precision"], const["eta"], white) + const["residuals"]

    def _server_figures(self, problem: Problem, white: Tensor, const: State) -> State:
        return judged(white, self._sites_scores(problem, white, const), self.kernel)

    def _sites_step(self, problem: Problem, carry: Any, const: State, _: Any) -> tuple[Any, tuple[Tensor, ...]]:
        white, optimiser = carry
        return self.stepped(white, self._sites_scores(problem, white, const), optimiser, const["pace"].to(white))

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Adopt what the client sent, and where the particles were on average of late."""
        self.require_one(weights)
        adopted = {name: value[0] for name, value in messages.items()}
        done = shared["pass"] + shared["pass_length"]
        whole = (self.averaged_rounds * shared["pass_length"]).clamp_min(1.0)  # passes that are averaged
        share = (shared["pass_length"] / torch.minimum(done, whole)).to(adopted["white"].dtype)
        averaged = torch.lerp(shared["averaged"], adopted["white"], share)
        return paced({**shared, **adopted, "averaged": averaged, "pass": done})

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """KSD, that of draws, errors of moments, spread in the Gaussian's SDs, effective number, move in these SDs."""
        moved = (after["white"] - before["white"]).square().mean().sqrt()
        return {
            "ksd": float(after["ksd"]),
            "ksd_of_draws": float(after["noise"]),
            "mean_off": float(after["mean_off"]),
            "sd_off": float(after["sd_off"]),
            "spread": float(spread(after["white"]).mean()),
            "effective_particles": float(effective_number(after["white"])),
            "change": float(moved),
            "pass": float(before["pass"]),
            "modes": float(after["modes"]),
            "apart": float(after["apart"]),
            "near": float(after["near"]),
            "steps": float(after["steps"]),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the KSD is that of exact draws or no longer falls, and the scores have nothing against the moments.

        Particles that started apart have all their rounds and no criterion: between basins the KSD rises and falls.
        """
        if figures[-1]["apart"]:
            return None
        if len(figures) < 2:
            return False
        width = round(1.0 / (figures[1]["pass"] - figures[0]["pass"]))
        last = figures[-width:]
        if len(figures) % width or not all(at_rest(each) for each in last):
            return False
        if figures[-1].get("near") and figures[-1]["steps"] < LEAST_STEPS:
            return False
        if figures[-1]["ksd"] <= self.noise * figures[-1]["ksd_of_draws"]:
            return True
        if len(figures) <= self.patience * width or any(unlike_draws(each) for each in last):
            return False
        if len(figures) >= self.max_passes * width:
            return True
        passes = [sum(f["ksd"] for f in figures[i : i + width]) for i in range(0, len(figures), width)]
        return min(passes[-self.patience :]) > (1.0 - self.min_fall) * min(passes[: -self.patience])

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Moments that the scores object to, and too few particles to span the space."""
        latest = record.latest
        if not latest or latest["apart"]:
            return []
        if latest["spread"] < COLLAPSED:
            rounds, spread = len(record.figures), latest["spread"]
            if record.converged:
                return [sentences.particles_collapsed(spread=spread)]
            return [sentences.particles_collapsed_on_their_way(rounds=rounds, spread=spread)]
        span = ((self.num_particles - 1) / problem.dim) ** 0.5
        if span * SD_MATTERS < 1.0:
            return [sentences.particles_span_too_little(particles=self.num_particles, dim=problem.dim, factor=span)]
        if at_rest(latest):
            return self._too_few(problem.dim)
        return [
            sentences.particles_are_off(
                rounds=len(record.figures),
                mean_off=latest["mean_off"],
                sd_off=latest["sd_off"],
                cures=[self.cure(record)],
            )
        ]

    def _too_few(self, dim: int) -> list[Finding]:
        """Few particles satisfy the identities that judge them, whatever the posterior."""
        if self.num_particles >= min(FEWEST, PARTICLES_PER_COORDINATE * dim):
            return []
        return [sentences.too_few_particles(particles=self.num_particles, needed=FEWEST)]

    def cure(self, record: Record) -> str:
        """What to do about particles that are not at rest."""
        if len(record.figures) < self.default_rounds(len(record.client_names)):
            return "Give them more rounds (num_rounds)"
        return (
            "Take the default step_size, kernel and start where they were changed; else more passes (max_passes), more "
            f"particles, or an algorithm that samples: {record.untried('FSGLD', 'NUTS')}"
        )

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The particles, (1, N, D); those that started apart at their mean positions of late."""
        white = shared["averaged"] if bool(shared["apart"]) else shared["white"]
        return Coordinates(shared["mean"], shared["factor"]).model(white)[None]


def judged(white: Tensor, scores: Tensor, kernel: Kernel) -> State:
    """What the scores at whitened particles (N, D) say of them."""
    found, noise = ksd_and_noise(white, scores, kernel)
    mean_off, sd_off = moments_off(white, scores)
    return {"ksd": found, "noise": noise, "mean_off": mean_off, "sd_off": sd_off}


def at_rest(figures: dict[str, float]) -> bool:
    """Whether the scores at the particles have nothing against their means and standard deviations."""
    return figures["mean_off"] <= MATTERS and figures["sd_off"] <= SD_MATTERS


def paced(shared: State) -> State:
    """With the pace after a round: half of it where particles of a census have ended a pass no nearer than before."""
    if not bool(shared["census"]):
        return shared
    total, done = shared["pass_ksd"] + shared["ksd"], shared["pass"]
    if float((done - done.round()).abs()) > 0.5 * float(shared["pass_length"]):
        return {**shared, "pass_ksd": total}
    nearer = bool(total < shared["lowest_ksd"])
    return {
        **shared,
        "pass_ksd": torch.zeros_like(total),
        "lowest_ksd": torch.minimum(total, shared["lowest_ksd"]),
        "pace": shared["pace"] if nearer else 0.5 * shared["pace"],
    }


def unlike_draws(figures: dict[str, float]) -> bool:
    """Whether the discrepancy is larger than that of draws of the posterior, by more than chance."""
    return not figures["ksd"] <= BY_CHANCE * figures["ksd_of_draws"]


def residual_of(own: Tensor, white: Tensor, local: State) -> Tensor:
    """r_{k,n}: how far a client's scores are from its surrogate's at the particles, (C, N, D)."""
    return own - site_scores(local["precision"], local["eta"], white)
