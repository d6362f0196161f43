"""The audit of draws without a run: read back from a file, or made by another library."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.audit.evidence import FEWEST_DRAWS, Evidence, Unknown
from pyro_fed.audit.stillness import stillness
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.federation.federation import Federation


def audit_draws(federation: Federation, draws: Tensor, draws_are: str, problem: Problem | None = None) -> list[Finding]:
    """Why draws should not be trusted, by the checks that need only the draws and the model.

    Args:
        federation: the model and its rows.
        draws: (chain, draw, D), unconstrained and finite.
        draws_are: "particles", "independent", "agents" or "chains".
        problem: the model's densities, as a run compiles them; by default the federation's, which are not compiled.

    Returns:
        One finding a reason. Fewer than `FEWEST_DRAWS` independent draws are not judged, and give none.

    Example:
        >>> audit_draws(fed, draws, "chains")
    """
    if draws_are in ("independent", "agents") and draws.shape[0] * draws.shape[1] < FEWEST_DRAWS:
        return []
    algorithm = cast("Algorithm", Unknown(draws_are))  # the check reads nothing else of the algorithm
    record = Record(federation.client_names)
    with torch.no_grad():
        return stillness(Evidence(algorithm, federation, problem or federation.problem, {}, draws, record, seed=0))
