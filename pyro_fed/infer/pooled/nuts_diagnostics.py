"""Diagnostics from the trajectories of NUTS: divergences, deep trees, mixing, and the exploration of energies."""

from __future__ import annotations

import torch

from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.ops.arviz_versions import bfmi, ess, rhat

#: R-hat above which chains have not mixed (Vehtari et al. 2021); BFMI below which energies are explored badly.
LARGEST_RHAT = 1.01
SMALLEST_BFMI = 0.3
#: Share of draws with the deepest tree above which a run warns.
OFTEN_DEEPEST = 0.05
#: Number of draws in a chain above which R-hat, ESS and BFMI are meaningful.
FEWEST_DRAWS = 50


def trajectory_figures(message: State, max_tree_depth: int) -> State:
    """Divergences, saturated trees, and the worst R-hat, ESS and BFMI, each (1,).

    `message` has `draws` (1, chains, S, D), and `diverging`, `tree_depth` and `energy`, (1, chains, S).
    """
    figures = {
        "divergences": message["diverging"].sum().double(),
        "deepest_trees": (message["tree_depth"] >= max_tree_depth).double().mean(),
    }
    draws = message["draws"][0].double().numpy()
    num_chains, num_samples = draws.shape[:2]
    if num_samples >= FEWEST_DRAWS:
        energy = message["energy"][0].double().numpy()
        figures["bfmi_min"] = torch.tensor(float(bfmi(energy).min()))
        figures["ess_min"] = torch.tensor(float(ess(draws).min()))
        if num_chains > 1:
            figures["rhat_max"] = torch.tensor(float(rhat(draws).max()))
    return {name: value.reshape(1) for name, value in figures.items()}


def sampler_struggled(record: Record) -> bool:
    """Whether trajectories diverged, chains disagree or energies are badly explored."""
    divergences, _, rhat, bfmi = _diagnosis(record)
    return divergences > 0 or rhat > LARGEST_RHAT or bfmi < SMALLEST_BFMI


def trajectory_warnings(record: Record, problem: Problem) -> list[Finding]:
    """Warnings, with cures, about divergences, saturated trees, chains that have not mixed and unexplored energies."""
    divergences, deepest, rhat, bfmi = _diagnosis(record)
    hints = problem.traits.funnel_hint if sampler_struggled(record) else []
    return [
        *([sentences.trajectories_diverged(trajectories=divergences)] if divergences > 0 else []),
        *([sentences.trees_saturated(share=deepest)] if deepest > OFTEN_DEEPEST else []),
        *([sentences.chains_not_mixed(r_hat=rhat, limit=LARGEST_RHAT)] if rhat > LARGEST_RHAT else []),
        *([sentences.energies_badly_explored(bfmi=bfmi, limit=SMALLEST_BFMI)] if bfmi < SMALLEST_BFMI else []),
        *(sentences.funnel_is_likely(hint=hint) for hint in hints),
    ]


def _diagnosis(record: Record) -> tuple[float, float, float, float]:
    """Number of divergences, share of the deepest trees, largest R-hat, smallest BFMI."""

    def last(name: str, default: float) -> float:
        values = record.last(name)
        return float(values[0]) if len(values) else default

    return last("divergences", 0), last("deepest_trees", 0), last("rhat_max", 1.0), last("bfmi_min", 1.0)
