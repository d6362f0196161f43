"""Distributed Stein variational gradient descent (Kassab & Simeone, Algorithm 1).

In each round one client k moves the global particles by L steps of SVGD towards its tilted target,

    ∇ log p̃_k(θ) = ∇ log q^(i-1)(θ) - ∇ log t_k^(i-1)(θ) - 1/α ∇ L_k(θ)                               (14)

then distils its new site into its N local particles by L' steps towards

    ∇ log t_k^(i)(θ) = ∇ log q^(i)(θ) + ∇ log t_k^(i-1)(θ) - ∇ log q^(i-1)(θ)                          (17)

where q^(i) and t_k^(i) are Gaussian KDEs of the global and the local particles. As in the first line of Algorithm 1,
q^(0) is the prior itself and t_k^(0) = 1.

Letters: θ `particles`, q `q`, t `site`, α `temperature`, -L_k log-likelihood of client k, L `local_steps`,
L' `distill_steps`, ε AdaGrad's step, λ `kde_bandwidth`.

Deviation: `kde_floor`, which is in the authors' code but not in the paper, is added to every KDE, so that its score
vanishes far from the particles. It is on by default, and off in the recipes, which follow the paper. Where the score
vanishes, the targets here lose the prior; the authors' code has the prior in every client's target, and counts it once
for each client. Scores are computed in log space.

With one particle there is neither repulsion nor a second moment: each client ascends its tilted density, and q^(i) is
one Gaussian with variance λ². This is partitioned variational inference with such Gaussians (Appendix A.2).

Limits: in many dimensions the KDE degenerates: each particle has only its own old position as a neighbour. The record
contains the number of neighbours (`kde_neighbours`), and a run whose KDE degenerates warns. In few dimensions a site
may not be a density: if q^(i) is wider than q^(i-1), their ratio grows outwards, and the local particles of Eq. (17)
diverge. U-DSVGD, which does not distil, does not have this problem (`benchmarks/papers/mixtures.py`).

The figures of a turn contain the identities of the client's own likelihood, and of its rows' share of the prior, at the
particles that it received (`ops.stein.linear_identities`). Their sums over the clients are the posterior's identities;
a run whose particles violate these warns.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import RoundRobin, Schedule
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores, likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, batch_of, with_batches
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.stein.particles import ParticleAlgorithm
from pyro_fed.ops.stein import effective_neighbours, kde_draws, kde_score, ksd, largest_off, linear_identities, spread

#: Smallest effective number of neighbours: with fewer a KDE only knows the particle's own old position.
MIN_NEIGHBOURS = 2.0
#: Smallest share of particles with so many neighbours: with a smaller one the KDE has degenerated.
MIN_ALIVE_SHARE = 0.5


class Approximation(NamedTuple):
    """q^(i-1): the prior if `is_prior` (), else the KDE of the particles (N, D); leading axes are clients."""

    particles: Tensor
    is_prior: Tensor


class Site(NamedTuple):
    """t_k^(i-1): the KDE of the client's local particles `site` (N, D) once it is `visited` (), else one."""

    site: Tensor
    visited: Tensor


@dataclass(frozen=True, kw_only=True)
class SiteParticles(ParticleAlgorithm, Indicators):
    """Base of DSVGD and U-DSVGD: global particles at a server, and one site for each client; clients take turns.

    Args:
        num_particles: N.
        local_steps: L, SVGD steps of a client's turn, one turn per round.
        kde_bandwidth: λ, standard deviation of the KDE's Gaussian kernel.
        kde_floor: constant added to the KDE, in units of a kernel's peak; 0 as in the paper.
        draws: draws of the result: "particles", or draws of the KDE q around them, which average to the predictive of
            Eq. (22) to (24).
    """

    fewest_particles: ClassVar[int] = 1
    #: The kind of a client's site, a record of entries of its state.
    site_kind: ClassVar[type[Any]] = Site

    kde_bandwidth: float = 0.55
    kde_floor: float = 1e-9
    draws: Literal["particles", "kde"] = "particles"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "kde_bandwidth")

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The particles, (1, N, D), or draws of the KDE, (1, S, D), equally many for each particle."""
        if self.draws == "particles":
            return super().sample(shared, num_draws, generator)
        return kde_draws(shared["particles"], num_draws, self.kde_bandwidth, generator)[None]

    def default_rounds(self, num_clients: int) -> int:
        return max(20, 2 * num_clients)

    def default_schedule(self) -> Schedule:
        return RoundRobin()

    @abstractmethod
    def site_score(self, problem: Problem, particles: Tensor, site: Any) -> Tensor:
        """Score of a client's site, of `site_kind`, at the particles: (N, D)."""

    def start_shared(self, problem: Problem, generator: torch.Generator) -> State:
        """Draw particles from the prior, which is the first q."""
        particles = problem.init(self.num_particles, generator)
        return Approximation(particles, torch.tensor(True, device=particles.device))._asdict()

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return super().combine(shared, messages, weights) | {"is_prior": torch.zeros_like(shared["is_prior"])}

    def global_score(self, problem: Problem, particles: Tensor, q: Approximation) -> Tensor:
        """Score of q^(i-1): the prior's before the first update, the KDE's after."""
        density = kde_score(particles, q.particles, self.kde_bandwidth, self.kde_floor)
        return torch.where(q.is_prior, prior_scores(problem, particles), density)

    def move_global(
        self, problem: Problem, q: Approximation, site: Any, data: ClientData, noise: Noise
    ) -> tuple[Tensor, State]:
        """Take L steps towards the tilted target, Eq. (13): new particles (C, N, D), and the steps' figures."""
        rows, axes = with_batches(data, self.batch_size)
        carry = q.particles, self.start_optimiser(q.particles)
        (particles, _), gains = problem.scan(
            self._global_step, carry, (q, site, rows), noise, self.local_steps, (0, 0, axes)
        )
        return particles, self.entropy_figures(gains)

    def _global_step(self, problem: Problem, carry: Any, const: Any, picks: Any) -> tuple[Any, tuple[Tensor, ...]]:
        particles, optimiser = carry
        q, site, rows = const
        scores = self.tilted_scores(problem, particles, q, site, batch_of(rows, picks))
        return self.step_and_entropy(particles, scores, optimiser)

    def indicate(self, kind: str, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """The KSD of the particles from the client's tilted distribution, or the client's likelihood scores there."""
        batch, q, site = data.full_batch(), entries_as(Approximation, shared), entries_as(self.site_kind, local)
        if kind == "hip":
            scores = clients_likelihood_scores(problem, q.particles, data)
            return {"scores": scores / self.temperature}
        return {"ksd": problem.mapped(self._tilted_ksd, (0, 0, BATCHES))(q, site, batch)}

    def _tilted_ksd(self, problem: Problem, q: Approximation, site: Any, batch: Batch) -> Tensor:
        particles = q.particles
        return ksd(particles, self.tilted_scores(problem, particles, q, site, batch), self.kernel)

    def tilted_scores(self, problem: Problem, particles: Tensor, q: Approximation, site: Any, batch: Batch) -> Tensor:
        """Score of the tilted target, Eq. (14), at particles (N, D)."""
        is_prior = q.is_prior.to(particles.dtype)

        def model_part(z: Tensor) -> Tensor:
            """log p_0 (only in the first round) and -L_k / α, by one execution of the model."""
            log_prior, pointwise = problem.log_parts(z, batch.rows)
            return is_prior * log_prior + (pointwise * batch.weight).sum() / self.temperature

        density = kde_score(particles, q.particles, self.kde_bandwidth, self.kde_floor)
        model: Tensor = problem.vmap(grad(model_part))(particles)
        return model + (1.0 - is_prior) * density - self.site_score(problem, particles, site)

    def figures(self, problem: Problem, q: Approximation, particles: Tensor, data: ClientData) -> State:
        """The new particles' effective neighbours in the KDE of q^(i-1), their spread, and the client's identities."""
        neighbours = effective_neighbours(particles, q.particles, self.kde_bandwidth)
        alive = (neighbours >= MIN_NEIGHBOURS).to(particles.dtype)
        figures = {
            "kde_neighbours": neighbours.mean(-1),
            "kde_alive": alive.mean(-1),
            "spread": spread(particles).mean(-1),
        }
        # Identities are figures of every parameter, round and client.
        if problem.traits.many_parameters or self.num_particles == 1:
            return figures
        share = data.num_rows.to(particles.dtype) / problem.num_rows
        identities = problem.mapped(self._identities, (0, 0, BATCHES))
        mean, identity = identities(q.particles, share, data.full_batch())
        return {**figures, "mean_identity": mean, "sd_identity": identity}

    def _identities(self, problem: Problem, particles: Tensor, share: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        likelihood = likelihood_scores(problem, particles, batch) / self.temperature
        return linear_identities(particles, likelihood + share * prior_scores(problem, particles))

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about a degenerate density estimate, and about particles that violate the posterior's identities."""
        alive = record.last("kde_alive")
        if self.num_particles > 1 and len(alive) > 0 and np.mean(alive) < MIN_ALIVE_SHARE:
            dead = 1 - float(np.mean(alive))
            return [
                sentences.density_estimate_is_empty(bandwidth=self.kde_bandwidth, share=dead, neighbours=MIN_NEIGHBOURS)
            ]
        return self._identity_findings(record, problem)

    def _identity_findings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning about particles that violate the posterior's identities, from the clients' last figures."""
        identities: dict[int, tuple[Tensor, Tensor]] = {}
        for round in reversed(record.rounds):
            if "mean_identity" in round.info:
                values = [torch.as_tensor(round.info[name]) for name in ("mean_identity", "sd_identity")]
                for row, client in enumerate(round.clients):
                    identities.setdefault(client, (values[0][row], values[1][row]))
        if not identities:
            return []
        missing = len(record.client_names) - len(identities)
        if missing:
            return [sentences.some_clients_had_no_turn(missing=missing, of_clients=len(record.client_names))]
        mean, share = (torch.stack(parts).sum(0) for parts in zip(*identities.values(), strict=True))
        mean_off, sd_off = (float(value) for value in largest_off(mean, share))
        if mean_off <= MATTERS and sd_off <= SD_MATTERS:
            return []
        return [
            sentences.particles_balance_elsewhere(
                algorithm=type(self).__name__, bandwidth=self.kde_bandwidth, mean_off=mean_off, sd_off=sd_off
            )
        ]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PaperDSVGD(SiteParticles):
    """DSVGD as published: particles at the server, and a site of N local particles at each client.

    Args:
        distill_steps: L', SVGD steps that distil the site.

    References:
        Kassab & Simeone, Algorithm 1, Eq. (13)-(17); settings from Table 3.

    Example:
        >>> idata = pf.run(pf.papers.PaperDSVGD(num_particles=100, batch_size=10), fed)
    """

    distill_steps: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "distill_steps")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start all local particles at the global ones, with sites equal to one."""
        shared = self.start_shared(problem, generator)
        site = shared["particles"].expand(num_clients, -1, -1).clone()
        return shared, Site(site, torch.zeros(num_clients, dtype=torch.bool, device=site.device))._asdict()

    def site_score(self, problem: Problem, particles: Tensor, site: Site) -> Tensor:
        """Score of t_k^(i-1): zero before the client's first turn."""
        score = kde_score(particles, site.site, self.kde_bandwidth, self.kde_floor)
        return torch.where(site.visited, score, torch.zeros_like(score))

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Move the global particles, then distil the site."""
        q, site = entries_as(Approximation, shared), entries_as(Site, local)
        particles, steps = self.move_global(problem, q, site, data, noise)
        carry = site.site, self.start_optimiser(site.site)
        (distilled, _), _ = problem.scan(self._distill_step, carry, (q, site, particles), (), self.distill_steps)
        new_site = Site(distilled, torch.ones_like(site.visited))
        return {"particles": particles}, new_site._asdict(), steps | self.figures(problem, q, particles, data)

    def _distill_step(self, problem: Problem, carry: Any, const: Any, _: Any) -> tuple[Any, tuple[()]]:
        local, optimiser = carry
        q, site, particles = const
        scores = (
            kde_score(local, particles, self.kde_bandwidth, self.kde_floor)
            + self.site_score(problem, local, site)
            - self.global_score(problem, local, q)
        )
        return self.move(local, scores, optimiser), ()
