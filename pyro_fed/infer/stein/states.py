"""The server's state of DSVGD and its relatives: its beginning after the survey, and the pace, the factor of steps.

AdaGrad's first steps have one size, however near the target is. Particles that start under the Gaussian nearest to a
posterior of one mode only have to find its shape. Those that start at weighted points of the posterior are draws of it:
they only settle, and their factor halves after each pass that does not lower their discrepancy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION
from pyro_fed.algorithm.contract import Start, State
from pyro_fed.density.derivatives import prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.stein.survey import SurveyState, residuals_at
from pyro_fed.ops.stein import effective_number, spread


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
    pace: Tensor  # factor of a step, see `pace`
    near: Tensor  # 1 if particles started under the Gaussian nearest to a posterior of one mode
    census: Tensor  # 1 if they started as weighted points of the posterior
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

    def adopting(self, entries: State) -> Server:
        """The state with some entries replaced by those with the same names."""
        values: dict[str, Any] = dict(entries)
        return replace(self, **values)


#: Factor of the steps of draws of the posterior.
SETTLING_STEP_SHARE = 0.25
#: Factor of the steps of particles that start under the nearest Gaussian; their turns have half as many steps.
NEAREST_STEP_SHARE, TURN_DIVISOR = 0.4, 2


def first_pace(problem: Problem, found: SurveyState) -> float:
    """The factor of the particles' first steps, by the survey's last state."""
    if not bool(found.census):
        return NEAREST_STEP_SHARE if bool(found.near) else 1.0
    # Steps in proportion to the whole's SD would carry particles from one mode to the next. The score of N(0, 1) has
    # the median `NORMAL_MEDIAN_DEVIATION` in size, that of modes a tenth as wide ten times that.
    prior = prior_scores(problem, found.coordinates.model(found.white).to(problem.dtype)).double()
    size = (found.scores + found.coordinates.pull(prior)).abs().nan_to_num(nan=0.0)
    return SETTLING_STEP_SHARE / max(1.0, float(size.median(0).values.max()) / NORMAL_MEDIAN_DEVIATION)


def with_pace(server: Server) -> Server:
    """The server's state with the factor after a round: halved if draws have ended a pass no nearer than before."""
    if not bool(server.census):
        return server
    total, done = server.pass_ksd + server.ksd, server.passed
    if float((done - done.round()).abs()) > 0.5 * float(server.pass_length):
        return replace(server, pass_ksd=total)
    pace = server.pace if bool(total < server.lowest_ksd) else 0.5 * server.pace
    return replace(server, pass_ksd=total.new_zeros(()), lowest_ksd=total.minimum(server.lowest_ksd), pace=pace)


def first_states(problem: Problem, num_clients: int, start: Start, num_particles: int) -> tuple[State, State]:
    """The server's state (`Server`) and the clients' sites, with residuals at the particles, from the survey."""
    found, sites = entries_as(SurveyState, start.shared), gaussian(start.local)
    if bool(found.apart):  # no surrogates
        found, sites = found._replace(product=found.product.power(0.0)), sites.power(0.0)
    white, scores = found.white, start.shared.get("held_scores", start.local["scores"])
    residual, residuals = residuals_at(scores, sites, white, problem.dtype)
    tensors = {
        **dict.fromkeys(("white", "averaged"), white),
        "residuals": residuals,
        "history": torch.zeros_like(white),
        "steps": white.new_zeros(()),
        **found.coordinates._asdict(),
        **as_state(found.product),
    }
    figures = {
        **dict.fromkeys(("ksd", "noise", "mean_off", "sd_off"), torch.nan),
        "modes": float((found.shares > 0.5 / num_particles).sum()),  # those that got a particle, rounded
        "apart": float(found.apart),
        "pass": 0.0,
        "pass_length": 1.0 / num_clients,
        "pace": first_pace(problem, found),
        "near": float(found.near),
        "census": float(found.census),
        "pass_ksd": 0.0,
        "lowest_ksd": torch.inf,
    }
    shared = {name: value.to(problem.dtype) for name, value in tensors.items()}
    shared |= {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
    local = {"residual": residual, **as_state(sites)}
    return shared, {name: value.to(problem.dtype) for name, value in local.items()}
