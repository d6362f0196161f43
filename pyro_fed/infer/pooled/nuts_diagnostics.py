"""What trajectories of NUTS say of themselves: divergences, deep trees, mixing, and how energies are explored."""

from __future__ import annotations

import torch

from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.checks.funnels import funnel_hint
from pyro_fed.density.problem import Problem
from pyro_fed.ops.arviz_versions import bfmi, ess, rhat

#: Above this R-hat chains have not mixed (Vehtari et al. 2021); below this BFMI energies are explored badly.
LARGEST_RHAT = 1.01
SMALLEST_BFMI = 0.3
#: More draws than this share with the deepest tree are worth a warning.
OFTEN_DEEPEST = 0.05
#: Chains longer than this many draws are needed for R-hat, ESS and BFMI to mean something.
FEWEST_DRAWS = 50


def trajectory_figures(message: State, max_tree_depth: int) -> State:
    """Divergences, saturated trees, and the worst R-hat, ESS and BFMI, each (1,).

    Args:
        message: `draws` (1, chains, S, D), and `diverging`, `tree_depth` and `energy`, (1, chains, S).
        max_tree_depth: the deepest tree.
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
    """Divergences, saturated trees, chains that have not mixed, energies that are badly explored; what may help.

    Args:
        record: of the run.
        problem: the model's densities.
    """
    divergences, deepest, rhat, bfmi = _diagnosis(record)
    hints = funnel_hint(problem) if sampler_struggled(record) else []
    return [
        *([sentences.trajectories_diverged(trajectories=divergences)] if divergences > 0 else []),
        *([sentences.trees_saturated(share=deepest)] if deepest > OFTEN_DEEPEST else []),
        *([sentences.chains_not_mixed(r_hat=rhat, limit=LARGEST_RHAT)] if rhat > LARGEST_RHAT else []),
        *([sentences.energies_badly_explored(bfmi=bfmi, limit=SMALLEST_BFMI)] if bfmi < SMALLEST_BFMI else []),
        *(sentences.funnel_is_likely(hint=hint) for hint in hints),
    ]


def _diagnosis(record: Record) -> tuple[float, float, float, float]:
    """Divergences, share of the deepest trees, largest R-hat, smallest BFMI."""

    def last(name: str, default: float) -> float:
        values = record.last(name)
        return float(values[0]) if len(values) else default

    return last("divergences", 0), last("deepest_trees", 0), last("rhat_max", 1.0), last("bfmi_min", 1.0)
