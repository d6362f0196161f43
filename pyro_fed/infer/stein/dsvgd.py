"""Accurate distributed SVGD: whitened, with Gaussian sites that are corrected at each particle.

Kassab & Simeone's Algorithm 1 moves the particles at one client a round towards its tilted target,

    ∇ log p̃_k = ∇ log p_0 + ∇ log p_k + Σ_{j≠k} ∇ log t_j,                                      (11), (14)

with sites t_j that are ratios of kernel density estimates. Those are dead beyond a few dimensions and
improper in their tails (see `dsvgd_paper`). Here they are the Gaussian surrogates of `survey`, corrected at each
particle (see `corrected_sites`). A turn of client k: L steps of SVGD towards log p_0 + log p_k + Σ_{j≠k} log t_{j,n},
with p_0 and p_k exact; then it sends the particles and Σ_j r_j with its own part renewed.

Rest of the remedies: the kernel `Balanced`, which keeps two moments and the marginals right; a decaying step; a
start as standardised points of the Gaussian of `survey`, or at each mode that it finds; and an end, after a pass
in which every client had its turn, as soon as the kernelised Stein discrepancy is a twentieth of what N exact
draws of the posterior would have (`ksd_and_noise`), or has stopped falling. What is left below that is the fit of
a D-dimensional cloud to N points, not to the posterior: along a skewed parameter (the precision of a hierarchical
prior) the particles would go on drifting outwards while the discrepancy falls.

Where the Gaussian phase ends at no maximum (`survey`, "apart"), as with neural networks, nothing above helps:
a surrogate would be wrong, and a residual is stale once the particles have left its basin. Then the particles
start as draws of the prior, in units of the prior's SDs, and a turn makes L steps of SVGD with the RBF kernel
towards

    log p_0 + (n / n_k) log p_k                        n rows in all, n_k of client k

an incremental gradient. Its bias by the last client, of first order in the step, is taken out by returning each
particle's mean position over the last pass, or 20 rounds where K is less (an exponential mean, of as many rounds); what
is left vanishes with the decaying step. The `apart` figure of every round says so.

Letters: N `num_particles`, L `local_steps`; the others as in `corrected_sites`. A client receives: particles, Σ_j r_j,
AdaGrad's state (N, D each), and m, A, Σ_j Λ_j, Σ_j η_j.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, started
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import RoundRobin, Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, ClientData, batch_of, with_batches
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.whitening import Coordinates, site_scores
from pyro_fed.infer.stein.corrected_sites import CorrectedSites, own_site
from pyro_fed.infer.stein.survey import BEGINNINGS, Begin, Survey
from pyro_fed.ops.balanced import Balanced
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.stein import effective_number, spread
from pyro_fed.ops.step_sizes import AdaGradState

#: Spread of the particles, in SDs of the Gaussian of `survey`, below which they have collapsed.
COLLAPSED = 0.5
#: One kernel object for all defaults, so that equal settings are equal.
BALANCED = Balanced()


@dataclass(frozen=True, kw_only=True)
class DSVGD(CorrectedSites):
    """Accurate DSVGD: one client a round moves the particles, the others are sites corrected at each.

    Args:
        start: "gaussian", "modes", "prior", "apart" or "checked", see `survey`; "auto" looks for modes where the prior
            is proper and the model has at most `max_modes_dim` parameters; it takes the Gaussian elsewhere, with a
            check where the prior is proper and the model too large for Hessians, which would see a saddle.
        max_modes_dim: see `start`.
        max_passes: passes over the clients, at most.
        noise: the run has converged when the KSD is at most this share of that of N exact draws,
        min_fall: or when the KSD of a pass has not fallen by this share
        patience: for this many passes.
        averaged_rounds: particles that started apart are returned at their mean over so many rounds, at least a pass.

    References:
        Kassab & Simeone, Algorithm 1. Liu & Wang (2018), SVGD as moment matching.
    """

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

    def default_rounds(self, num_clients: int) -> int:
        """`max_passes` over the clients; it stops by itself."""
        return self.max_passes * num_clients

    def default_schedule(self) -> Schedule:
        """One client a round, in turn."""
        return RoundRobin()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The Gaussian or the search for modes, and the scores where the particles start."""
        return self.survey()(num_particles=self.num_particles, begin=self.begin(problem), temperature=self.temperature)

    def survey(self) -> type[Survey]:
        """The algorithm of the phase before."""
        return Survey

    def begin(self, problem: Problem) -> Begin:
        """Where the particles of this model start."""
        if self.start != "auto":
            return self.start
        if problem.layout.improper or self.max_modes_dim < problem.dim <= FedEP.full_dim:
            return "gaussian"
        return "modes" if problem.dim <= self.max_modes_dim else "checked"

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Particles where the survey says, with the clients' residuals known there."""
        start = started(start, self)
        found, sites = start.shared, gaussian(start.local)
        if bool(found["apart"]):
            found, sites = found | as_state(gaussian(found).power(0.0)), sites.power(0.0)
        white, scores = found["white"], start.local["scores"]
        residual = scores - site_scores(sites.precision, sites.eta, white)
        coordinates = Coordinates(found["mean"], found["factor"])
        tensors = {
            "white": white,
            "averaged": white,
            "residuals": residual.sum(0),
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
            "modes": seen,
            "apart": float(found["apart"]),
            "pass": 0.0,
            "pass_length": 1.0 / num_clients,
        }
        shared |= {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
        local = {"residual": residual, **as_state(sites)}
        return shared, {name: value.to(problem.dtype) for name, value in local.items()}

    def download(self, shared: State, clients: Tensor) -> State:
        """Everything but the server's figures."""
        names = ("white", "residuals", "history", "steps", "mean", "factor", "precision", "eta", "apart")
        return super().download({name: shared[name] for name in names}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """L steps towards the client's own target, then its residual where the particles are now."""
        const, mover = self.others(problem, shared, local, data), self.mover(shared)
        full = data.full_batch()
        figures = problem.mapped(mover.discrepancy, (0, 0, BATCHES))(shared["white"], const, full)
        rows, dims = with_batches(data, self.batch_size)
        carry = (shared["white"], AdaGradState(shared["history"], shared["steps"]))
        (white, optimiser), _ = problem.scan(
            mover._step, carry, (const, rows), noise, self.local_steps, (dict.fromkeys(const, 0), dims)
        )
        residual = problem.mapped(self.residual, (0, 0, BATCHES))(white, {**const, **own_site(local)}, full)
        message = {
            "white": white,
            "residuals": const["tilt"] + residual,
            "history": optimiser.history,
            "steps": optimiser.steps,
            **figures,
        }
        return message, {**local, "residual": residual}, {"client_ksd": figures["ksd"]}

    def _step(self, problem: Problem, carry: Any, inputs: Any, picks: Any) -> tuple[Any, tuple[()]]:
        white, optimiser = carry
        const, rows = inputs
        return self.move(white, self.target_scores(problem, white, const, batch_of(rows, picks)), optimiser), ()

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Adopt what the client sent, and where the particles were on average of late."""
        self.require_one(weights)
        adopted = {name: value[0] for name, value in messages.items()}
        done = shared["pass"] + shared["pass_length"]
        whole = (self.averaged_rounds * shared["pass_length"]).clamp_min(1.0)  # passes that are averaged
        share = (shared["pass_length"] / torch.minimum(done, whole)).to(adopted["white"].dtype)
        averaged = torch.lerp(shared["averaged"], adopted["white"], share)
        return {**shared, **adopted, "averaged": averaged, "pass": done}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """KSD, that of draws, spread in the Gaussian's SDs, effective number of particles, move in these SDs, pass."""
        moved = (after["white"] - before["white"]).square().mean().sqrt()
        return {
            "ksd": float(after["ksd"]),
            "ksd_of_draws": float(after["noise"]),
            "spread": float(spread(after["white"]).mean()),
            "effective_particles": float(effective_number(after["white"])),
            "change": float(moved),
            "pass": float(before["pass"]),
            "modes": float(after["modes"]),
            "apart": float(after["apart"]),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the KSD is that of exact draws, or that of the last `patience` passes is no lower than before.

        Particles that started apart have all their rounds: between basins the KSD rises and falls.
        """
        if len(figures) < 2 or figures[-1]["apart"]:
            return False
        width = round(1.0 / (figures[1]["pass"] - figures[0]["pass"]))
        if len(figures) % width:
            return False
        if figures[-1]["ksd"] <= self.noise * figures[-1]["ksd_of_draws"]:
            return True
        if len(figures) <= self.patience * width:
            return False
        passes = [sum(f["ksd"] for f in figures[i : i + width]) for i in range(0, len(figures), width)]
        return min(passes[-self.patience :]) > (1.0 - self.min_fall) * min(passes[: -self.patience])

    def warnings(self, record: Record, problem: Problem) -> list[str]:
        """Particles that have drawn together."""
        width = record.latest.get("spread", 1.0)
        if width >= COLLAPSED or record.latest.get("apart"):
            return []
        return [
            f"the particles have drawn together: their spread is {width:.2g} times that of the Gaussian "
            "they started from. Take more particles, or a smaller step_size"
        ]

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The particles, (1, N, D); those that started apart at their mean positions of late."""
        white = shared["averaged"] if bool(shared["apart"]) else shared["white"]
        return Coordinates(shared["mean"], shared["factor"]).model(white)[None]
