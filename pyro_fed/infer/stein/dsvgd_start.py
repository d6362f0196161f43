"""The first states of DSVGD, from the survey's final states."""

from __future__ import annotations

import torch

from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.infer.stein.pace import first_pace
from pyro_fed.infer.stein.survey import residuals_at
from pyro_fed.ops.whitening import Coordinates


def first_states(problem: Problem, num_clients: int, start: Start, num_particles: int) -> tuple[State, State]:
    """The server's state (`Server`) and the clients' sites, with residuals at the particles, from the survey."""
    found, sites = start.shared, gaussian(start.local)
    if bool(found["apart"]):  # no surrogates
        found, sites = found | as_state(gaussian(found).power(0.0)), sites.power(0.0)
    white, scores = found["white"], found.get("held_scores", start.local["scores"])
    residual, residuals = residuals_at(scores, sites, white, problem.dtype)
    tensors = {
        "white": white,
        "averaged": white,
        "residuals": residuals,
        "history": torch.zeros_like(white),
        "steps": white.new_zeros(()),
        **Coordinates(found["mean"], found["factor"])._asdict(),
        **as_state(gaussian(found)),
    }
    figures = {
        "ksd": torch.nan,
        "noise": torch.nan,
        "mean_off": torch.nan,
        "sd_off": torch.nan,
        "modes": float((found["shares"] > 0.5 / num_particles).sum()),  # those that got a particle, rounded
        "apart": float(found["apart"]),
        "pass": 0.0,
        "pass_length": 1.0 / num_clients,
        "pace": first_pace(problem, found),
        "near": float(found["near"]),
        "census": float(found["census"]),
        "pass_ksd": 0.0,
        "lowest_ksd": torch.inf,
    }
    shared = {name: value.to(problem.dtype) for name, value in tensors.items()}
    shared |= {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
    local = {"residual": residual, **as_state(sites)}
    return shared, {name: value.to(problem.dtype) for name, value in local.items()}
