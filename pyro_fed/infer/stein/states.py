"""States of DSVGD and its relatives: sites that are corrected at each particle, a client's tilted target, the server.

    ∇ log t_{k,n}(z) = η_k - Λ_k z + r_{k,n}                                   site of client k at particle n
    log p̃_k = log p_0 + w_k log p_k / α + Σ_{j≠k} log t_j                      target of client k, Eq. (11)

in coordinates z that whiten a Gaussian, with w_k = 1. If particles started apart, there are no sites, and the client's
rows represent all rows: w_k = n / n_k.

AdaGrad's first steps have the same size for near and distant targets. The step factor multiplies the steps. It is small
for particles that start under the Gaussian nearest to a posterior of one mode, which only have to adapt to its shape.
Particles that start at weighted points of the posterior are already draws of it, and their step factor is halved after
each pass that does not lower their discrepancy.

Letters: Λ `precision`, η `eta`, r `residual`, w `own_weight`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION
from pyro_fed.algorithm.contract import Start, State
from pyro_fed.density.derivatives import clients_likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.stein.survey import SurveyState, residuals_at
from pyro_fed.ops.stein import effective_number, spread
from pyro_fed.ops.step_sizes import AdaGradState
from pyro_fed.ops.whitening import Coordinates, site_scores

#: Smallest number of rounds, and at least a pass, of the mean positions of particles that started apart.
AVERAGED_ROUNDS = 20
#: Entries of the server's state that clients receive: those of `Received`, and AdaGrad's state.
SENT = (
    "white",
    "residuals",
    *AdaGradState._fields,
    "mean",
    "factor",
    "precision",
    "eta",
    "apart",
    "step_factor",
    "near",
)


class Site(NamedTuple):
    """A client's site t_k, or the product of several; leading axes are clients."""

    precision: Tensor  # Λ (..., D, D) or (..., D)
    eta: Tensor  # η (..., D)
    residual: Tensor  # r (..., N, D)

    def surrogate_scores(self, white: Tensor) -> Tensor:
        """η - Λ z, without the correction, at particles (..., N, D)."""
        return site_scores(self.precision, self.eta, white)

    def corrected(self, own: Tensor, white: Tensor) -> Site:
        """The site with residuals that make it exact at particles (..., N, D); `own` are the likelihood's scores."""
        return self._replace(residual=own - self.surrogate_scores(white))


class Received(NamedTuple):
    """The message to a client, without AdaGrad's state; leading axes are clients."""

    white: Tensor  # particles z (..., N, D)
    coordinates: Coordinates  # of z
    sites: Site  # Π_j t_j
    step_factor: Tensor  # factor of a step, (...)
    apart: Tensor  # one if particles started apart, and have no sites, (...)
    near: Tensor  # one if particles started under the Gaussian nearest to a posterior of one mode, (...)

    @classmethod
    def of(cls, shared: State) -> Received:
        """The entries of the server's state, or of a client's download."""
        white = shared["white"]
        sites = Site(shared["precision"], shared["eta"], shared["residuals"])
        coordinates = Coordinates(shared["mean"], shared["factor"])
        return cls(
            white, coordinates, sites, shared["step_factor"].to(white), shared["apart"].to(white), shared["near"]
        )


class TiltedTarget(NamedTuple):
    """The target p̃_k of a client, without its likelihood; leading axes are clients."""

    coordinates: Coordinates  # of z
    others: Site  # Π_{j≠k} t_j
    own_weight: Tensor  # w (...)

    @classmethod
    def of(cls, received: Received, own: Site, all_by_own: Tensor) -> TiltedTarget:
        """Each client's target, from its own site; `all_by_own` is n / n_k (...), all clients' rows over its own."""
        sites, apart = received.sites, received.apart
        residual = (1.0 - apart)[:, None, None] * (sites.residual - own.residual)
        others = Site(sites.precision - own.precision, sites.eta - own.eta, residual)
        return cls(received.coordinates, others, 1.0 + apart * (all_by_own - 1.0))

    def scores(self, problem: Problem, white: Tensor, batch: Batch, temperature: float) -> Tensor:
        """∇ log p̃_k at particles (N, D), Eq. (11) and (14), by a batch of the client's rows."""
        batch = batch._replace(weight=self.own_weight * batch.weight)

        def log_own(z: Tensor) -> Tensor:
            return problem.log_joint(self.coordinates.model(z), batch, temperature)

        others = self.others.surrogate_scores(white) + self.others.residual
        own: Tensor = problem.vmap(grad(log_own))(white)
        return own + others


class Arrival(NamedTuple):
    """The quantities at the start of a client's turn; leading axes are clients."""

    received: Received  # what the client received
    target: TiltedTarget  # p̃_k
    own: Tensor  # scores of its likelihood at the particles, (C, N, D)
    site: Site  # t_k, which is exact at the particles

    @classmethod
    def of(cls, problem: Problem, shared: State, local: State, data: ClientData, temperature: float) -> Arrival:
        """The quantities from the clients' downloads, states and rows."""
        received, site = Received.of(shared), entries_as(Site, local)
        all_by_own = problem.num_rows / data.num_rows.clamp_min(1).to(problem.dtype)
        own = client_scores(problem, received.coordinates, received.white, data, temperature)
        target = TiltedTarget.of(received, site, all_by_own)
        return cls(received, target, own, site.corrected(own, received.white))


def client_scores(
    problem: Problem, coordinates: Coordinates, white: Tensor, data: ClientData, temperature: float
) -> Tensor:
    """∇ log p_k / α at the particles, (C, N, D)."""
    scores = clients_likelihood_scores(problem, coordinates.model(white), data)
    return coordinates.pull(scores) / temperature


def scores_by_sites(problem: Problem, white: Tensor, coordinates: Coordinates, sites: Site) -> Tensor:
    """Scores of log p_0 + Σ_j log t_j at particles (N, D), without any rows."""
    prior = coordinates.pull(prior_scores(problem, coordinates.model(white)))
    return prior + sites.surrogate_scores(white) + sites.residual


@dataclass(frozen=True)
class Server:
    """The particles, the product of all sites, and their diagnostics."""

    white: Tensor  # the particles z, (N, D)
    averaged: Tensor  # their recent mean positions, (N, D)
    residuals: Tensor  # Σ_j r_j at the particles, (N, D)
    history: Tensor  # AdaGrad's state, (N, D)
    steps: Tensor  # of AdaGrad
    mean: Tensor  # m of the coordinates z, (D,)
    factor: Tensor  # A of the coordinates
    precision: Tensor  # Σ_j Λ_j
    eta: Tensor  # Σ_j η_j
    ksd: Tensor  # discrepancy of the particles from the last client's target, see `at_rest`
    noise: Tensor  # that of as many exact draws
    mean_off: Tensor  # largest error of a mean by the scores, in SDs
    sd_off: Tensor  # the same for SDs
    modes: Tensor  # number of modes that the survey has found
    apart: Tensor  # 1 if particles started apart, and have no sites
    passed: Annotated[Tensor, "pass"]  # passes over the clients so far
    pass_length: Tensor  # share of a pass that one client's turn makes
    step_factor: Tensor  # factor of a step
    near: Tensor  # 1 if particles started under the Gaussian nearest to a posterior of one mode
    weighted: Tensor  # 1 if they started as weighted points of the posterior
    pass_ksd: Tensor  # sum of this pass's discrepancies
    lowest_ksd: Tensor  # the lowest such sum of a pass
    account: State  # residuals that clients with bounded messages have sent, and their accepted parts

    def figures(self, before: Server) -> dict[str, float]:
        """The figures of a round that began at the state `before`."""
        return {
            "ksd": float(self.ksd),
            "ksd_of_draws": float(self.noise),
            "mean_off": float(self.mean_off),
            "sd_off": float(self.sd_off),
            "spread": float(spread(self.white).mean()),
            "effective_particles": float(effective_number(self.white)),
            "change": float((self.white - before.white).square().mean().sqrt()),
            "pass": float(before.passed),
            "modes": float(self.modes),
            "apart": float(self.apart),
            "near": float(self.near),
            "steps": float(self.steps),
        }

    def with_average(self, before: Server) -> Server:
        """This state after a round from the state `before`, with the mean positions and the passes so far."""
        done = before.passed + before.pass_length
        whole = (AVERAGED_ROUNDS * before.pass_length).clamp_min(1.0)  # passes that are averaged
        share = (before.pass_length / torch.minimum(done, whole)).to(self.white.dtype)
        return replace(self, averaged=torch.lerp(before.averaged, self.white, share), passed=done)

    def adopting(self, entries: State) -> Server:
        """The state with some entries replaced by those with the same names."""
        values: dict[str, Any] = dict(entries)
        return replace(self, **values)


#: Factor of the steps of draws of the posterior.
SETTLING_STEP_SHARE = 0.25
#: Factor of the steps of particles that start under the nearest Gaussian; their turns have half as many steps.
NEAREST_STEP_SHARE = 0.4


def first_step_factor(problem: Problem, found: SurveyState) -> float:
    """The factor of the particles' first steps, by the survey's last state."""
    if not bool(found.weighted):
        return NEAREST_STEP_SHARE if bool(found.near) else 1.0
    # Steps in proportion to the whole's SD would carry particles from one mode to the next. The score of N(0, 1) has
    # the median `NORMAL_MEDIAN_DEVIATION` in size, that of modes a tenth as wide ten times that.
    prior = prior_scores(problem, found.coordinates.model(found.white).to(problem.dtype)).double()
    size = (found.scores + found.coordinates.pull(prior)).abs().nan_to_num(nan=0.0)
    return SETTLING_STEP_SHARE / max(1.0, float(size.median(0).values.max()) / NORMAL_MEDIAN_DEVIATION)


def with_step_factor(server: Server) -> Server:
    """The state with the step factor after a round: halved if a pass of draws has not lowered the discrepancy."""
    if not bool(server.weighted):
        return server
    total, done = server.pass_ksd + server.ksd, server.passed
    if float((done - done.round()).abs()) > 0.5 * float(server.pass_length):
        return replace(server, pass_ksd=total)
    step_factor = server.step_factor if bool(total < server.lowest_ksd) else 0.5 * server.step_factor
    return replace(
        server, pass_ksd=total.new_zeros(()), lowest_ksd=total.minimum(server.lowest_ksd), step_factor=step_factor
    )


def first_states(problem: Problem, num_clients: int, start: Start, num_particles: int) -> tuple[State, State]:
    """The server's state (`Server`) and the clients' sites, with residuals at the particles, from the survey."""
    found, sites = entries_as(SurveyState, start.shared), gaussian(start.local)
    if bool(found.apart):  # no surrogates
        found, sites = found._replace(product=found.product.power(0.0)), sites.power(0.0)
    white, limited_scores = found.white, start.shared.get("held_scores")  # with limits (`SurveyContributions`)
    scores = start.local["scores"] if limited_scores is None else limited_scores
    residual, residuals = residuals_at(scores, sites, white, problem.dtype)
    tensors = {
        "white": white,
        "averaged": white,
        "residuals": residuals,
        "history": torch.zeros_like(white),
        "steps": white.new_zeros(()),
        **found.coordinates._asdict(),
        **as_state(found.product),
    }
    figures = {
        "ksd": torch.nan,
        "noise": torch.nan,
        "mean_off": torch.nan,
        "sd_off": torch.nan,
        "modes": float((found.shares > 0.5 / num_particles).sum()),  # those that got a particle, rounded
        "apart": float(found.apart),
        "pass": 0.0,
        "pass_length": 1.0 / num_clients,
        "step_factor": first_step_factor(problem, found),
        "near": float(found.near),
        "weighted": float(found.weighted),
        "pass_ksd": 0.0,
        "lowest_ksd": torch.inf,
    }
    shared = {name: value.to(problem.dtype) for name, value in tensors.items()}
    shared |= {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
    local = {"residual": residual, **as_state(sites)}
    return shared, {name: value.to(problem.dtype) for name, value in local.items()}
